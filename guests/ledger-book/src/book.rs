//! The book: entries in integer cents, read from and written to CSV. No IO here.

use std::fmt::Write;

const HEADER: &str = "description,amount\n";

/// The largest amount of one entry, in whole units of money.
pub const MAX_AMOUNT: f64 = 1e12;
const MAX_CENTS: i64 = 100_000_000_000_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub description: String,
    pub cents: i64,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Book {
    pub entries: Vec<Entry>,
}

/// Money as an amount with two decimals.
pub fn decimal(cents: i128) -> String {
    let sign = if cents < 0 { "-" } else { "" };
    let cents = cents.unsigned_abs();
    format!("{sign}{}.{:02}", cents / 100, cents % 100)
}

/// Rounds to whole cents, halves away from zero; none when the amount is not one this book can hold.
pub fn cents(amount: f64) -> Option<i64> {
    (amount.abs() <= MAX_AMOUNT).then(|| (amount * 100.0).round() as i64)
}

impl Book {
    /// Reads what [`Book::to_csv`] wrote. An error names the record that is wrong, counted from 1 for the header.
    pub fn parse(csv: &str) -> Result<Self, String> {
        let mut records = records(csv)?.into_iter();
        match records.next() {
            None => return Ok(Self::default()),
            Some(header) if header == ["description", "amount"] => {}
            Some(_) => return Err("record 1 is not the header description,amount".into()),
        }
        let entries = records
            .enumerate()
            .map(|(index, fields)| entry(fields).map_err(|problem| format!("record {} {problem}", index + 2)));
        Ok(Self {
            entries: entries.collect::<Result<_, _>>()?,
        })
    }

    pub fn to_csv(&self) -> String {
        let mut csv = HEADER.to_owned();
        for entry in &self.entries {
            push_field(&mut csv, &entry.description);
            csv.push(',');
            csv.push_str(&decimal(entry.cents.into()));
            csv.push('\n');
        }
        csv
    }

    pub fn balance(&self) -> i128 {
        self.entries.iter().map(|entry| i128::from(entry.cents)).sum()
    }

    /// The whole book as Markdown; `money` writes an amount.
    pub fn report(&self, money: impl Fn(i128) -> String) -> String {
        let mut report = "# Ledger\n\n| # | description | amount |\n|---:|---|---:|\n".to_owned();
        for (index, entry) in self.entries.iter().enumerate() {
            let description = markdown_cell(&entry.description);
            let amount = money(entry.cents.into());
            // Writing to a string cannot fail.
            let _ = writeln!(report, "| {} | {description} | {amount} |", index + 1);
        }
        let _ = write!(report, "\nBalance: **{}**\n", money(self.balance()));
        report
    }
}

fn entry(fields: Vec<String>) -> Result<Entry, String> {
    let [description, amount] =
        <[String; 2]>::try_from(fields).map_err(|fields| format!("has {} fields instead of 2", fields.len()))?;
    let cents = parse_cents(&amount).ok_or_else(|| format!("has the amount \"{amount}\""))?;
    Ok(Entry { description, cents })
}

/// The reverse of [`decimal`], and as strict: anything else was not written by this agent.
fn parse_cents(text: &str) -> Option<i64> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let (units, fraction) = digits.split_once('.')?;
    let numeric = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !numeric(units) || !numeric(fraction) || fraction.len() != 2 {
        return None;
    }
    let cents: i64 = format!("{units}{fraction}").parse().ok()?;
    (cents <= MAX_CENTS).then_some(sign * cents)
}

/// Splits CSV into records of fields. Fields may be quoted, `""` is a quote, records end with LF or CRLF.
fn records(csv: &str) -> Result<Vec<Vec<String>>, String> {
    let mut records = Vec::new();
    let mut rest = csv;
    while !rest.is_empty() {
        let number = records.len() + 1;
        let mut fields = Vec::new();
        loop {
            let field;
            (field, rest) = take_field(rest).map_err(|problem| format!("record {number} {problem}"))?;
            fields.push(field);
            if let Some(after) = rest.strip_prefix(',') {
                rest = after;
                continue;
            }
            rest = rest
                .strip_prefix("\r\n")
                .or_else(|| rest.strip_prefix('\n'))
                .unwrap_or(rest);
            break;
        }
        records.push(fields);
    }
    Ok(records)
}

/// Takes one field; what is left starts with a comma or a line end, or is empty.
fn take_field(text: &str) -> Result<(String, &str), String> {
    let Some(mut rest) = text.strip_prefix('"') else {
        let end = text.find([',', '\n']).unwrap_or(text.len());
        let (mut field, rest) = text.split_at(end);
        if rest.starts_with('\n') {
            field = field.strip_suffix('\r').unwrap_or(field);
        }
        if field.contains('"') {
            return Err("has a quote inside an unquoted field".into());
        }
        return Ok((field.to_owned(), &text[field.len()..]));
    };
    let mut field = String::new();
    loop {
        let end = rest.find('"').ok_or("has a quote that is never closed")?;
        field.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(after) => {
                field.push('"');
                rest = after;
            }
            None if rest.is_empty() || rest.starts_with([',', '\n']) || rest.starts_with("\r\n") => {
                return Ok((field, rest));
            }
            None => return Err("has text after a closing quote".into()),
        }
    }
}

fn push_field(csv: &mut String, field: &str) {
    if field.contains([',', '"', '\n', '\r']) {
        csv.push('"');
        csv.push_str(&field.replace('"', "\"\""));
        csv.push('"');
    } else {
        csv.push_str(field);
    }
}

fn markdown_cell(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('|', "\\|")
        .replace("\r\n", " ")
        .replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(entries: &[(&str, i64)]) -> Book {
        let entries = entries.iter().map(|&(description, cents)| Entry {
            description: description.into(),
            cents,
        });
        Book {
            entries: entries.collect(),
        }
    }

    #[test]
    fn csv_survives_a_round_trip() {
        let written = book(&[("coffee", 350), ("a,b \"c\"\r\nd", -1), ("", 0), (" x ", 10_000)]);
        assert_eq!(Book::parse(&written.to_csv()), Ok(written));
        assert_eq!(Book::parse(""), Ok(Book::default()));
        assert_eq!(Book::parse("description,amount\r\ntea,1.05"), Ok(book(&[("tea", 105)])));
    }

    #[test]
    fn what_is_not_a_ledger_is_named() {
        for (csv, problem) in [
            ("a,b\n", "record 1 is not the header description,amount"),
            ("description,amount\ntea\n", "record 2 has 1 fields instead of 2"),
            ("description,amount\ntea,1.5\n", "record 2 has the amount \"1.5\""),
            (
                "description,amount\ntea,9999999999999.00\n",
                "record 2 has the amount \"9999999999999.00\"",
            ),
            (
                "description,amount\n\"tea,1.50\n",
                "record 2 has a quote that is never closed",
            ),
            (
                "description,amount\n\"tea\"x,1.50\n",
                "record 2 has text after a closing quote",
            ),
            (
                "description,amount\nt\"ea,1.50\n",
                "record 2 has a quote inside an unquoted field",
            ),
        ] {
            assert_eq!(Book::parse(csv), Err(problem.to_owned()), "{csv:?}");
        }
    }

    #[test]
    fn amounts_are_rounded_to_cents() {
        assert_eq!(cents(3.5), Some(350));
        assert_eq!(cents(-0.005), Some(-1));
        assert_eq!(cents(1e12), Some(MAX_CENTS));
        assert_eq!(cents(1.1e12), None);
        assert_eq!(cents(f64::INFINITY), None);
        assert_eq!(cents(f64::NAN), None);
        assert_eq!([decimal(-5), decimal(0), decimal(1234)], ["-0.05", "0.00", "12.34"]);
    }

    #[test]
    fn a_report_lists_entries_and_balance() {
        let report = book(&[("a|b\nc", 350), ("d", -100)]).report(decimal);
        assert_eq!(
            report,
            "# Ledger\n\n| # | description | amount |\n|---:|---|---:|\n| 1 | a\\|b c | 3.50 |\n| 2 | d | -1.00 |\n\nBalance: **2.50**\n"
        );
    }
}
