//! Options of translators: one table for each, from which their values are parsed, their help is printed, and unknown
//! ones are refused.

use hekate_proto::op::OP_LABELS;
use hekate_proto::{Error, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// An option of a translator.
#[derive(Debug, Clone, PartialEq)]
pub struct OptionSpec {
    pub name: String,
    pub kind: OptionKind,
    /// Its value if it is not given, as text.
    pub default: String,
    /// A sentence for people.
    pub help: String,
}

/// What values an option takes.
#[derive(Debug, Clone, PartialEq)]
pub enum OptionKind {
    /// `true` or `false`.
    Flag,
    /// A whole number within these limits.
    Number { min: u64, max: u64 },
    /// Bytes: a number with `K`, `M` or `G` (powers of 1024) behind it, within these limits.
    Bytes { min: u64, max: u64 },
    /// A time: a number with `us`, `ms`, `s`, `m` or `h` behind it, up to this one.
    Time { max: Duration },
    /// Part of a hundred: `0` to `100`, with decimals.
    Percent,
    /// Any text; `""` if there is none.
    Text,
    /// One of these words.
    Choice(Vec<String>),
    /// Names of ops, with `+` between them; `all` for all.
    Ops,
}

impl OptionSpec {
    /// A row of a table.
    pub fn new(name: &str, kind: OptionKind, default: &str, help: &str) -> Self {
        Self { name: name.into(), kind, default: default.into(), help: help.into() }
    }

    /// Checks a value.
    ///
    /// # Errors
    /// `Invalid` with the values that the option takes.
    fn check(&self, translator: &str, value: &str) -> Result<()> {
        let is_right = match &self.kind {
            OptionKind::Flag => matches!(value, "true" | "false"),
            OptionKind::Number { min, max } => value.parse().is_ok_and(|number: u64| (min..=max).contains(&&number)),
            OptionKind::Bytes { min, max } => bytes_of(value).is_some_and(|number| (min..=max).contains(&&number)),
            OptionKind::Time { max } => time_of(value).is_some_and(|time| time <= *max),
            OptionKind::Percent => value.parse().is_ok_and(|share: f64| (0.0..=100.0).contains(&share)),
            OptionKind::Text => true,
            OptionKind::Choice(words) => words.iter().any(|word| word == value),
            OptionKind::Ops => ops_of(value).is_some(),
        };
        if is_right {
            return Ok(());
        }
        let (name, takes) = (&self.name, self.kind.text());
        Err(Error::invalid(format!("translator {translator}: {name}={value}: {name} takes {takes}")))
    }
}

impl OptionKind {
    /// The values in words, for help and refusals.
    pub fn text(&self) -> String {
        match self {
            Self::Flag => "true or false".into(),
            Self::Number { min, max: u64::MAX } => format!("a number, {min} or more"),
            Self::Number { min, max } => format!("a number from {min} to {max}"),
            Self::Bytes { min, max: u64::MAX } => format!("bytes (4096, 64K, 1M, 2G), {min} or more"),
            Self::Bytes { min, max } => format!("bytes (4096, 64K, 1M, 2G) from {min} to {max}"),
            Self::Time { max } => format!("a time (50us, 20ms, 5s, 2m, 1h) of at most {} s", max.as_secs()),
            Self::Percent => "a share of a hundred from 0 to 100".into(),
            Self::Text => "a text".into(),
            Self::Choice(words) => format!("one of {}", words.join(", ")),
            Self::Ops => format!("all, or ops with + between them: {}", OP_LABELS.join(" ")),
        }
    }
}

/// The values of a translator's options, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    values: BTreeMap<String, String>,
}

impl Options {
    /// Checks what was given against a table, and adds the defaults. `is_open`: other names are allowed too, because
    /// the translator checks them itself.
    ///
    /// # Errors
    /// `Invalid` with the options that there are, or the values that one takes.
    pub fn check(
        translator: &str,
        table: &[OptionSpec],
        is_open: bool,
        given: &BTreeMap<String, String>,
    ) -> Result<Self> {
        for (name, value) in given {
            match table.iter().find(|option| option.name == *name) {
                Some(option) => option.check(translator, value)?,
                None if is_open => {}
                None => return Err(unknown(translator, name, table)),
            }
        }
        let mut values = given.clone();
        for option in table {
            values.entry(option.name.clone()).or_insert_with(|| option.default.clone());
        }
        Ok(Self { values })
    }

    /// All values by name.
    pub fn values(&self) -> &BTreeMap<String, String> {
        &self.values
    }

    fn value(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    /// Value of a `Flag`.
    pub fn flag(&self, name: &str) -> bool {
        self.value(name) == "true"
    }

    /// Value of a `Number`.
    pub fn number(&self, name: &str) -> u64 {
        self.value(name).parse().unwrap_or_default()
    }

    /// Value of `Bytes`.
    pub fn bytes(&self, name: &str) -> u64 {
        bytes_of(self.value(name)).unwrap_or_default()
    }

    /// Value of a `Time`.
    pub fn time(&self, name: &str) -> Duration {
        time_of(self.value(name)).unwrap_or_default()
    }

    /// Value of a `Percent`, as a share of 1.
    pub fn share(&self, name: &str) -> f64 {
        self.value(name).parse().unwrap_or(0.0) / 100.0
    }

    /// Value of a `Text` or a `Choice`.
    pub fn text(&self, name: &str) -> &str {
        self.value(name)
    }

    /// Value of `Ops`.
    pub fn ops(&self, name: &str) -> OpSet {
        ops_of(self.value(name)).unwrap_or_default()
    }
}

fn unknown(translator: &str, name: &str, table: &[OptionSpec]) -> Error {
    let known: Vec<&str> = table.iter().map(|option| option.name.as_str()).collect();
    let known = if known.is_empty() { "it has none".into() } else { format!("it has {}", known.join(", ")) };
    Error::invalid(format!("translator {translator} has no option {name:?}; {known}"))
}

/// A set of ops, by their labels.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpSet(u64);

impl OpSet {
    /// All ops.
    pub const ALL: Self = Self(u64::MAX);

    /// The ops with these labels; unknown labels are left out.
    pub fn of<'a>(labels: impl IntoIterator<Item = &'a str>) -> Self {
        Self(labels.into_iter().filter_map(index_of).fold(0, |bits, at| bits | 1 << at))
    }

    /// As a number, by the place of each op in the table of labels.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// From [`OpSet::bits`].
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// True if the op with this label is one of them.
    pub fn has(self, label: &str) -> bool {
        self == Self::ALL || index_of(label).is_some_and(|at| self.0 >> at & 1 == 1)
    }

    /// The labels.
    pub fn labels(self) -> Vec<&'static str> {
        OP_LABELS.iter().copied().filter(|label| self.has(label)).collect()
    }
}

/// Place of an op in the table of labels.
pub fn index_of(label: &str) -> Option<usize> {
    const { assert!(OP_LABELS.len() <= u64::BITS as usize) };
    OP_LABELS.binary_search(&label).ok()
}

fn ops_of(text: &str) -> Option<OpSet> {
    match text {
        "all" => Some(OpSet::ALL),
        "" => Some(OpSet::default()),
        _ => text.split('+').all(|label| index_of(label).is_some()).then(|| OpSet::of(text.split('+'))),
    }
}

fn bytes_of(text: &str) -> Option<u64> {
    let unit = |suffix: char| match suffix {
        'K' => Some(1 << 10),
        'M' => Some(1 << 20),
        'G' => Some(1u64 << 30),
        _ => None,
    };
    match text.chars().last().and_then(unit) {
        Some(unit) => text[..text.len() - 1].parse::<u64>().ok()?.checked_mul(unit),
        None => text.parse().ok(),
    }
}

fn time_of(text: &str) -> Option<Duration> {
    const UNITS: [(&str, u64); 5] =
        [("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000), ("m", 60_000_000_000), ("h", 3_600_000_000_000)];
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let (number, unit) = UNITS.iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))?;
    Some(Duration::from_nanos(number.parse::<u64>().ok()?.checked_mul(unit)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Vec<OptionSpec> {
        let choice = OptionKind::Choice(vec!["pass".into(), "fail".into()]);
        let row = |name: &str, kind, default: &str| OptionSpec::new(name, kind, default, "");
        vec![
            row("entries", OptionKind::Number { min: 1, max: 10 }, "4"),
            row("room", OptionKind::Bytes { min: 0, max: 1 << 30 }, "64K"),
            row("wait", OptionKind::Time { max: Duration::from_secs(60) }, "20ms"),
            row("share", OptionKind::Percent, "12.5"),
            row("stuck", choice, "pass"),
            row("ops", OptionKind::Ops, "all"),
            row("on", OptionKind::Flag, "false"),
        ]
    }

    fn check(given: &[(&str, &str)]) -> Result<Options> {
        let given = given.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Options::check("t", &table(), false, &given)
    }

    #[test]
    fn values_are_parsed_and_defaults_added() {
        let options = check(&[("entries", "10"), ("ops", "lookup+create"), ("wait", "1m"), ("on", "true")]).unwrap();
        assert_eq!((options.number("entries"), options.bytes("room")), (10, 64 << 10));
        assert_eq!((options.time("wait"), options.share("share")), (Duration::from_secs(60), 0.125));
        assert_eq!((options.text("stuck"), options.flag("on")), ("pass", true));
        assert_eq!(options.ops("ops").labels(), ["create", "lookup"]);
        assert!(!options.ops("ops").has("read") && check(&[]).unwrap().ops("ops").has("read"));
    }

    #[test]
    fn refusals_name_the_options_and_their_values() {
        let said = |given: &[(&str, &str)]| check(given).unwrap_err().to_string();
        assert!(said(&[("entry", "1")]).contains("no option \"entry\"; it has entries, room"));
        for (name, value, words) in [
            ("entries", "0", "a number from 1 to 10"),
            ("entries", "-1", "a number from 1 to 10"),
            ("room", "2G", "from 0 to 1073741824"),
            ("room", "99999999999999G", "from 0 to"),
            ("wait", "61s", "at most 60 s"),
            ("wait", "5", "a time (50us"),
            ("share", "101", "from 0 to 100"),
            ("stuck", "wait", "one of pass, fail"),
            ("ops", "lookup+nonesuch", "lookup"),
            ("on", "yes", "true or false"),
        ] {
            assert!(said(&[(name, value)]).contains(words), "{name}={value}");
        }
    }
}
