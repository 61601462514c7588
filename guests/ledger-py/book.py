"""The book: entries in integer cents, read from and written to CSV. No IO here.

The same as guests/ledger-book/src/book.rs, to the byte. Python's csv module is not used because it
accepts more, and names problems differently.
"""

import math
import re
from dataclasses import dataclass, field

HEADER = "description,amount\n"
MAX_AMOUNT = 10**12  # of one entry, in whole units of money
MAX_CENTS = MAX_AMOUNT * 100
# As strict as decimal() writes it. [0-9] because \d takes digits of every script.
AMOUNT = re.compile(r"(-?)([0-9]+)\.([0-9]{2})")


class Corrupt(Exception):
    """The CSV is not a ledger; the text says which record is wrong and why."""


@dataclass
class Entry:
    description: str
    cents: int


@dataclass
class Book:
    entries: list[Entry] = field(default_factory=list)

    @staticmethod
    def parse(csv: str) -> "Book":
        header, *rest = records(csv) or [["description", "amount"]]
        if header != ["description", "amount"]:
            raise Corrupt("record 1 is not the header description,amount")
        return Book([entry(fields, number) for number, fields in enumerate(rest, start=2)])

    def to_csv(self) -> str:
        return HEADER + "".join(f"{quoted(e.description)},{decimal(e.cents)}\n" for e in self.entries)

    def balance(self) -> int:
        return sum(e.cents for e in self.entries)

    def report(self) -> str:
        rows = "".join(
            f"| {number} | {markdown_cell(e.description)} | {decimal(e.cents)} |\n"
            for number, e in enumerate(self.entries, start=1)
        )
        return (
            "# Ledger\n\n| # | description | amount |\n|---:|---|---:|\n"
            f"{rows}\nBalance: **{decimal(self.balance())}**\n"
        )


def decimal(cents: int) -> str:
    units, rest = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}{units}.{rest:02}"


def to_cents(amount: float) -> int | None:
    """Rounds halves away from zero, unlike round(); None when this book cannot hold the amount."""
    if not abs(amount) <= MAX_AMOUNT:  # false for NaN as well
        return None
    scaled = abs(amount * 100.0)
    whole = math.floor(scaled)
    cents = whole + (scaled - whole >= 0.5)
    return -cents if amount < 0 else cents


def entry(fields: list[str], number: int) -> Entry:
    if len(fields) != 2:
        raise Corrupt(f"record {number} has {len(fields)} fields instead of 2")
    description, amount = fields
    match = AMOUNT.fullmatch(amount)
    cents = int(match[2] + match[3]) if match and len(amount) < 32 else None
    if cents is None or cents > MAX_CENTS:
        raise Corrupt(f'record {number} has the amount "{amount}"')
    return Entry(description, -cents if match[1] else cents)


def records(csv: str) -> list[list[str]]:
    """Splits CSV into records of fields. Fields may be quoted, "" is a quote, records end with LF or CRLF."""
    found = []
    at = 0
    while at < len(csv):
        fields = []
        while True:
            text, at = take_field(csv, at, len(found) + 1)
            fields.append(text)
            if not csv.startswith(",", at):
                break
            at += 1
        at += 2 if csv.startswith("\r\n", at) else 1
        found.append(fields)
    return found


def take_field(csv: str, at: int, number: int) -> tuple[str, int]:
    """Takes one field; the position after it is at a comma, a line end, or the end."""
    if not csv.startswith('"', at):
        end = min((p for p in (csv.find(",", at), csv.find("\n", at)) if p >= 0), default=len(csv))
        if csv.startswith("\n", end) and end > at and csv[end - 1] == "\r":
            end -= 1
        text = csv[at:end]
        if '"' in text:
            raise Corrupt(f"record {number} has a quote inside an unquoted field")
        return text, end
    parts = []
    at += 1
    while True:
        end = csv.find('"', at)
        if end < 0:
            raise Corrupt(f"record {number} has a quote that is never closed")
        parts.append(csv[at:end])
        at = end + 1
        if csv.startswith('"', at):
            parts.append('"')
            at += 1
        elif at == len(csv) or csv.startswith((",", "\n", "\r\n"), at):
            return "".join(parts), at
        else:
            raise Corrupt(f"record {number} has text after a closing quote")


def quoted(text: str) -> str:
    if any(c in text for c in ',"\n\r'):
        return '"' + text.replace('"', '""') + '"'
    return text


def markdown_cell(text: str) -> str:
    text = text.replace("\\", "\\\\").replace("|", "\\|")
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")
