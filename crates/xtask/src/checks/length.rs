//! Files and functions are short; a longer one has an entry in `tidy.toml` that says why, and may not outgrow it.
//!
//! Tests do not count: `#[cfg(test)]` modules and what they reach, `#[test]` functions.

use syn::visit::{self, Visit};

use crate::report::{Offence, Report};
use crate::rust;
use crate::settings::{FILE, Settings};
use crate::tree::Tree;

pub fn check(tree: &Tree, settings: &Settings) -> Report {
    let mut long = Vec::new();
    for (path, text) in product_files(tree) {
        long.extend(long_things(&path, text, settings));
    }
    let mut report = Report::default();
    for thing in &long {
        judge(thing, settings, &mut report);
    }
    report.notes.extend(idle_entries(&long, settings));
    report
}

/// A file (without a name) or a function that is longer than its limit.
struct Long {
    path: String,
    name: Option<String>,
    line: usize,
    lines: usize,
    limit: usize,
}

fn product_files(tree: &Tree) -> Vec<(String, &str)> {
    let reached = tree.crates().into_iter().flat_map(|name| rust::modules(tree, name).reached);
    let product = reached.filter(|(path, test_only)| !test_only && rust::split(path).1 != "tests.rs");
    product.filter_map(|(path, _)| tree.text(&path).map(|text| (path, text))).collect()
}

fn long_things(path: &str, text: &str, settings: &Settings) -> Vec<Long> {
    let Ok(file) = syn::parse_file(text) else { return Vec::new() }; // checks::modules reports files that do not parse
    let mut counter = Counter::default();
    counter.visit_file(&file);
    let limits = &settings.limits;
    let file_lines = text.lines().count() - counter.test_lines;
    let whole = Long { path: path.to_string(), name: None, line: 1, lines: file_lines, limit: limits.file_lines };
    let functions = counter.functions.into_iter().map(|function| Long {
        path: path.to_string(),
        name: Some(function.name),
        line: function.line,
        lines: function.lines,
        limit: limits.function_lines,
    });
    functions.chain([whole]).filter(|thing| thing.lines > thing.limit).collect()
}

fn judge(thing: &Long, settings: &Settings, report: &mut Report) {
    let Long { path, line, lines, limit, .. } = thing;
    let (what, kind, name) = match &thing.name {
        Some(name) => (format!("fn {name}"), "long_function", format!("name = \"{name}\"\n")),
        None => ("the file".to_string(), "long_file", String::new()),
    };
    match allowed(thing, settings) {
        Some(allowed) if *lines <= allowed => {
            report.notes.push(format!("{path}:{line}: {what} has {lines} lines ({FILE} allows {allowed})"));
        }
        Some(allowed) => {
            let fix = format!("split it, or raise `lines` there and say why in `why`; {FILE} allows {allowed}");
            report.offences.push(Offence::at_line(path, *line, format!("{what} grew to {lines} lines; {fix}")));
        }
        None => {
            let entry = format!("[[{kind}]]\npath = \"{path}\"\n{name}lines = {lines}\nwhy = \"\"");
            let fix = format!("the limit is {limit}; split it, or say why not in {FILE}:\n{entry}");
            report.offences.push(Offence::at_line(path, *line, format!("{what} has {lines} lines, {fix}")));
        }
    }
}

fn allowed(thing: &Long, settings: &Settings) -> Option<usize> {
    let files = settings.long_file.iter().map(|entry| (&entry.path, None, entry.lines));
    let functions = settings.long_function.iter().map(|entry| (&entry.path, Some(&entry.name), entry.lines));
    let mut entries = files.chain(functions);
    entries.find(|(path, name, _)| **path == thing.path && *name == thing.name.as_ref()).map(|(_, _, lines)| lines)
}

/// Entries of `tidy.toml` whose file or function is within the limit.
fn idle_entries(long: &[Long], settings: &Settings) -> Vec<String> {
    let needed = |path: &str, name: Option<&String>| long.iter().any(|it| it.path == path && it.name.as_ref() == name);
    let files = settings.long_file.iter().filter(|entry| !needed(&entry.path, None));
    let functions = settings.long_function.iter().filter(|entry| !needed(&entry.path, Some(&entry.name)));
    let files = files.map(|entry| entry.path.clone());
    let functions = functions.map(|entry| format!("{} in {}", entry.name, entry.path));
    files.chain(functions).map(|name| format!("{name} is not over the limit; remove its entry from {FILE}")).collect()
}

struct Function {
    name: String,
    line: usize,
    lines: usize,
}

/// Measures functions from `fn` to the closing brace, and the lines of inline test modules.
#[derive(Default)]
struct Counter {
    functions: Vec<Function>,
    test_lines: usize,
    /// The type of the `impl`, or the trait, that the visitor is in.
    owner: Option<String>,
}

impl Counter {
    fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let name = signature.ident.to_string();
        let name = self.owner.as_ref().map(|owner| format!("{owner}::{name}")).unwrap_or(name);
        let (line, last) = (signature.fn_token.span.start().line, block.brace_token.span.close().end().line);
        self.functions.push(Function { name, line, lines: last + 1 - line });
    }

    fn within(&mut self, owner: Option<String>, visit: impl FnOnce(&mut Counter)) {
        let outer = std::mem::replace(&mut self.owner, owner);
        visit(self);
        self.owner = outer;
    }
}

impl<'ast> Visit<'ast> for Counter {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let Some((braces, _)) = module.content.as_ref().filter(|_| rust::is_test_only(&module.attrs)) else {
            return visit::visit_item_mod(self, module);
        };
        let first = module.attrs.iter().map(|attribute| attribute.pound_token.span.start().line).min();
        let first = first.unwrap_or_else(|| module.mod_token.span.start().line);
        self.test_lines += braces.span.close().end().line + 1 - first;
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !rust::is_test(&function.attrs) && !rust::is_test_only(&function.attrs) {
            self.within(None, |counter| counter.add(&function.sig, &function.block));
            self.within(None, |counter| visit::visit_item_fn(counter, function));
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !rust::is_test_only(&function.attrs) {
            self.add(&function.sig, &function.block);
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.add(&function.sig, block);
        }
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_item_impl(&mut self, block: &'ast syn::ItemImpl) {
        let owner = match &*block.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        self.within(owner, |counter| visit::visit_item_impl(counter, block));
    }

    fn visit_item_trait(&mut self, block: &'ast syn::ItemTrait) {
        self.within(Some(block.ident.to_string()), |counter| visit::visit_item_trait(counter, block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
struct Log;

impl Log {
    fn append(&self) {
        one();
        two();
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn long_as_you_like() {
        one();
        two();
        three();
    }
}
";

    fn report(source: &str, entries: &str) -> Report {
        let settings = "layers = { order = [], alone = [] }\nlimits = { file_lines = 9, function_lines = 3 }\n";
        let tree = Tree::of(&[("crates/a/Cargo.toml", ""), ("crates/a/src/lib.rs", source)]);
        check(&tree, &toml::from_str(&format!("{settings}{entries}")).unwrap())
    }

    fn entry(lines: usize) -> String {
        format!("[[long_function]]\npath = 'crates/a/src/lib.rs'\nname = 'Log::append'\nlines = {lines}\nwhy = 'x'\n")
    }

    #[test]
    fn short_files_are_fine_and_tests_do_not_count() {
        let report = report(&SOURCE.replace("        two();\n    }\n}\n\n", "    }\n}\n\n"), "");
        assert!(report.offences.is_empty(), "{:?}", report.offences);
    }

    #[test]
    fn a_long_function_needs_an_entry_that_is_not_outgrown() {
        let found = report(SOURCE, "").offences;
        assert_eq!(found[0].place, "crates/a/src/lib.rs:4");
        assert!(found[0].what.starts_with("fn Log::append has 4 lines, the limit is 3"), "{found:?}");
        let listed = report(SOURCE, &entry(4));
        assert!(listed.offences.is_empty() && listed.notes.len() == 1, "{listed:?}");
        assert!(report(&SOURCE.replace("two", "two();\nmore"), &entry(4)).offences[0].what.contains("grew to 5"));
    }

    #[test]
    fn a_long_file_is_found_and_an_idle_entry_is_noted() {
        let found = report(&"mod gone;\n".repeat(10), &entry(4));
        assert!(found.offences[0].what.starts_with("the file has 10 lines, the limit is 9"), "{found:?}");
        assert!(found.notes[0].contains("remove its entry"), "{found:?}");
    }
}
