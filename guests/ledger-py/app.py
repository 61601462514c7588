"""The ledger agent in Python: what guests/ledger does in Rust, with the same answers and the same files."""

import json

import wit_world
from book import MAX_AMOUNT, Book, Corrupt, Entry, decimal, to_cents
from componentize_py_types import Err, Ok
from wit_world.imports import decisions, files, log, types

LEDGER = "/scratch/ledger.csv"
REPORT = "report.md"

ENTRY = {
    "type": "object",
    "properties": {"description": {"type": "string"}, "amount": {"type": "number"}},
    "required": ["description", "amount"],
    "additionalProperties": False,
}


class ToolFailed(Exception):
    """The model reads the text."""


def tool(name: str, description: str, schema: dict | None = None) -> types.Tool:
    text = schema and json.dumps(schema, separators=(",", ":"))
    return types.Tool(name=name, description=description, input=text, output=None, handler=None)


def config() -> types.AgentConfig:
    return types.AgentConfig(
        model="default",
        system="You keep a ledger. Use the tools for every entry, balance and report, and never work out sums yourself.",
        stream=True,
        handler=None,
        format=None,
        retry=None,
        tools=[
            tool("add_entry", "Adds an entry to the ledger; the amount is negative for money spent.", ENTRY),
            tool("balance", "Says the balance of the ledger."),
            tool("report", "Delivers the ledger as the file report.md."),
        ],
        sub_agents=[],
    )


def respond(
    actions: list[decisions.Action] | None = None, agent: types.AgentConfig | None = None
) -> decisions.Answer:
    records = decisions.Records_None_()
    return decisions.Answer_Respond(decisions.Response(records, actions or [], state=None, agent=agent))


class WitWorld(wit_world.WitWorld):
    def decide(self, request: decisions.Request) -> decisions.Answer:
        match request.trigger:
            case decisions.Trigger_SessionStart():
                return respond(agent=config())
            # Bad arguments are answered best by the proposal: it tells the model what is wrong with them.
            case decisions.Trigger_ToolExecute(
                value=decisions.ToolExecute(name=name, input=decisions.ToolInput_Valid(value=text))
            ):
                return run(name, text)
            case _:
                return decisions.Answer_Accept()


def run(name: str, text: str) -> decisions.Answer:
    try:
        # A model may know a tool of another version: the session was offered it before a rollback.
        if name not in TOOLS:
            raise ToolFailed(f"there is no tool {name}")
        result = TOOLS[name](text)
        log.write(log.Level.INFO, f"{name}: {result}")
        outcome = Ok(json.dumps(result, ensure_ascii=False))
    except ToolFailed as failed:
        log.write(log.Level.ERROR, f"{name} failed: {failed}")
        outcome = Err(types.Failure(message=str(failed), retryable=False, code=None, detail=None))
    outcome = decisions.ToolOutcome(id=None, attempt=None, outcome=outcome)
    return respond([decisions.Action_ToolOutcome(outcome)])


def add_entry(text: str) -> str:
    try:
        # Numbers are read as floats, so that one larger than any float is infinite and not an error.
        value = json.loads(text, parse_int=float)
        description, amount = value["description"], value["amount"]
        description.encode()  # fails for half a surrogate pair, which JSON can spell and UTF-8 cannot
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.write(log.Level.DEBUG, f"add_entry: {error}")
        raise ToolFailed("add_entry cannot read its input") from error
    cents = to_cents(amount) if isinstance(amount, float) else None
    if cents is None:
        raise ToolFailed(f"the amount must be a number of at most {MAX_AMOUNT} either way")
    book = load()
    book.entries.append(Entry(description, cents))
    write(LEDGER, book.to_csv())
    return f'added "{description}" {decimal(cents)}, balance {decimal(book.balance())}'


def balance(_text: str) -> str:
    return f"balance {decimal(load().balance())}"


def report(_text: str) -> str:
    write(f"/scratch/{REPORT}", load().report())
    try:
        delivered = files.deliver(REPORT, "The ledger: every entry and the balance.")
    except Err as error:
        raise ToolFailed(f"{REPORT} was not delivered: {reason(error.value)}") from error
    return f"{REPORT} delivered ({delivered.bytes} bytes)"


TOOLS = {"add_entry": add_entry, "balance": balance, "report": report}


def load() -> Book:
    """A session without a ledger has an empty one."""
    try:
        with open(LEDGER, "rb") as file:
            csv = file.read().decode()
        return Book.parse(csv)
    except FileNotFoundError:
        return Book()
    except OSError as error:
        log.write(log.Level.DEBUG, f"{LEDGER}: {error}")
        raise ToolFailed(f"{LEDGER} cannot be read") from error
    except UnicodeDecodeError as error:
        raise ToolFailed(f"{LEDGER} is not UTF-8") from error
    except Corrupt as problem:
        raise ToolFailed(f"{LEDGER} is corrupt: {problem}") from problem


def write(path: str, text: str) -> None:
    try:
        with open(path, "wb") as file:
            file.write(text.encode())
    except OSError as error:
        log.write(log.Level.DEBUG, f"{path}: {error}")
        raise ToolFailed(f"{path} cannot be written") from error


def reason(error: files.DeliverError) -> str:
    match error:
        case files.DeliverError_NotFound():
            return "not found"
        case files.DeliverError_NotAFile():
            return "not a file"
        case files.DeliverError_TooLarge(value=limit):
            return f"larger than {limit} bytes"
        case files.DeliverError_Quota():
            return "quota used up"
        case files.DeliverError_BadPath(value=why) | files.DeliverError_Failed(value=why):
            return why
