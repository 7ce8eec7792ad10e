//! The text form of a layer: `NAME` or `NAME:OPTION=VALUE,OPTION=VALUE`. A backslash takes the next character as it is.

use hekate_proto::map::LayerSpec;
use hekate_proto::{Error, Result};

/// Parses the text form.
///
/// # Errors
/// `Invalid` if the text has another form, or an option is given twice.
pub fn parse(text: &str) -> Result<LayerSpec> {
    let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(Error::invalid(format!("{text:?} is no translator; say NAME or NAME:OPTION=VALUE,OPTION=VALUE")));
    }
    let mut spec = LayerSpec { name: name.into(), ..LayerSpec::default() };
    for item in rest.into_iter().flat_map(items) {
        let wrong = || {
            let hint = if name == "python" { "; one in Python is python:translator=NAME" } else { "" };
            Error::invalid(format!("{text:?}: {item:?} is no OPTION=VALUE{hint}"))
        };
        let (option, value) = item.split_once('=').ok_or_else(wrong)?;
        if option.is_empty() {
            return Err(wrong());
        }
        if spec.options.insert(option.into(), value.into()).is_some() {
            return Err(Error::invalid(format!("{text:?}: option {option} is given twice")));
        }
    }
    Ok(spec)
}

/// The parts between commas, without their backslashes.
fn items(text: &str) -> Vec<String> {
    let (mut items, mut item, mut chars) = (Vec::new(), String::new(), text.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => item.extend(chars.next()),
            ',' => items.push(std::mem::take(&mut item)),
            c => item.push(c),
        }
    }
    items.push(item);
    items
}

/// The text form of a layer, which [`parse`] reads.
pub fn text(spec: &LayerSpec) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace(',', "\\,");
    let options: Vec<String> = spec.options.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect();
    if options.is_empty() { spec.name.clone() } else { format!("{}:{}", spec.name, options.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_read_as_it_is_shown() {
        for text in ["trace", "fault:op=read,share=1", "python:translator=quota,extensions=.jpg\\,.png,mark=a\\\\b=c"] {
            assert_eq!(super::text(&parse(text).unwrap()).len(), text.len());
            assert_eq!(parse(&super::text(&parse(text).unwrap())), parse(text));
        }
        let spec = parse("python:translator=quota,extensions=.jpg\\,.png").unwrap();
        assert_eq!(spec.options["extensions"], ".jpg,.png");
    }

    #[test]
    fn other_forms_are_refused() {
        for text in ["", ":a=b", "a b", "trace:", "trace:ops", "trace:=x", "trace:a=1,a=2", "../x"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
