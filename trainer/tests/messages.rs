//! Everything that the program says, in one file that a reviewer can read: errors, warnings, log
//! lines, help texts and descriptions of configuration keys.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use syn::parse::ParseStream;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, Lit, LitStr, Macro, Meta, Token};
use trainer::config::reference;

const CRATES: [&str; 8] = [
    "burn-dist",
    "trainer",
    "datasets",
    "learner",
    "loader",
    "models",
    "kernels",
    "kernel-cache",
];

/// Macros whose string is shown to somebody however short it is.
const SHOWN: [&str; 13] = [
    "bail", "eprint", "eprintln", "format", "panic", "print", "println", "write", "writeln",
    "error", "warn", "info", "debug",
];

const HOW_TO_ACCEPT: &str = "Everything that the program says. To accept a change: \
    INSTA_UPDATE=always cargo test --release --workspace --test messages";

#[test]
fn messages_are_those_of_the_snapshot() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = BTreeMap::new();
    for name in CRATES {
        let sources = workspace.join(name).join("src");
        for root in ["lib.rs", "main.rs"] {
            if sources.join(root).is_file() {
                read_module(&sources.join(root), &sources, &mut files);
            }
        }
    }
    let mut text = String::new();
    for (path, messages) in files.iter().filter(|(_, messages)| !messages.is_empty()) {
        let path = path.strip_prefix(&workspace).expect("inside the workspace");
        text += &format!("{}\n", path.display());
        for message in messages {
            text += &format!("    {}\n", message.trim_end().replace('\n', "\n      "));
        }
        text += "\n";
    }
    text += &descriptions_of_keys();

    let mut settings = insta::Settings::clone_current();
    settings.set_description(HOW_TO_ACCEPT);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!("messages", text));
}

/// A user searches that page for a message.
#[test]
fn messages_that_troubleshooting_quotes_exist() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
    let known = read(tests.join("snapshots/messages__messages.snap"));
    let page = read(tests.join("../../docs/troubleshooting.md"));
    let (_, tables) = page.split_once("| message |").expect("a table of messages");
    let rows = tables.lines().filter_map(|row| row.strip_prefix("| "));
    let mut quotes = 0;
    let mut unknown = Vec::new();
    for cell in rows.filter_map(|row| row.split(" | ").next()) {
        for quote in cell.split('`').skip(1).step_by(2) {
            quotes += 1;
            // `…` stands for a value, or for a part of the message.
            let parts = quote
                .split('…')
                .map(|part| part.trim_matches([' ', '.', ':', ';', ',']));
            let lost = parts.filter(|part| part.len() > 5 && !known.contains(part));
            unknown.extend(lost.map(|part| format!("{part:?} of `{quote}`")));
        }
    }
    assert!(quotes > 60, "only {quotes} messages are quoted");
    assert!(
        unknown.is_empty(),
        "not in the snapshot:\n{}",
        unknown.join("\n")
    );
}

/// What docs/config.md says of each key and its values.
fn descriptions_of_keys() -> String {
    let mut text = "configuration keys\n".to_owned();
    for key in reference::keys() {
        let variant = key.variant.map(|name| format!(" with name = \"{name}\""));
        text += &format!(
            "    {}.{}{}: {}\n",
            key.section,
            key.name,
            variant.unwrap_or_default(),
            key.description
        );
        for (value, meaning) in key.values.iter().filter(|(_, meaning)| !meaning.is_empty()) {
            text += &format!("      \"{value}\": {meaning}\n");
        }
    }
    text
}

/// Reads the messages of the module in `file`, and of the modules that it declares in `folder`,
/// except those that only tests have.
fn read_module(file: &Path, folder: &Path, files: &mut BTreeMap<PathBuf, Vec<String>>) {
    let text = std::fs::read_to_string(file);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let parsed = syn::parse_file(&text);
    let parsed = parsed.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let mut reader = Reader::default();
    reader.visit_file(&parsed);
    files.insert(file.to_owned(), reader.messages);

    for Module { name, path } in reader.modules {
        let inner = folder.join(&name);
        match path {
            // As the compiler takes it: the modules of this one lie beside it.
            Some(path) => read_module(&folder.join(path), folder, files),
            None => {
                let alone = folder.join(format!("{name}.rs"));
                let file = match alone.is_file() {
                    true => alone,
                    false => inner.join("mod.rs"),
                };
                read_module(&file, &inner, files);
            }
        }
    }
}

/// A module in a file of its own.
struct Module {
    name: String,
    /// Its file, if it is not called like the module.
    path: Option<String>,
}

/// Collects the messages of a file in their order, and the modules that it declares.
#[derive(Default)]
struct Reader {
    messages: Vec<String>,
    modules: Vec<Module>,
    /// Whether doc comments are help texts.
    docs_are_shown: bool,
}

impl Reader {
    fn take(&mut self, text: &str, least_words: usize) {
        let text = without_tags(text);
        if words(&text) >= least_words {
            self.messages.push(text);
        }
    }

    fn take_docs(&mut self, attributes: &[Attribute]) {
        let lines: Vec<String> = attributes
            .iter()
            .filter_map(|attribute| text_of(attribute, "doc"))
            .map(|line| line.trim().to_owned())
            .collect();
        if !lines.is_empty() {
            self.messages.push(lines.join(" ").replace("  ", "\n"));
        }
    }

    fn item(&mut self, attributes: &[Attribute], visit: impl FnOnce(&mut Self)) {
        let derives = derives(attributes);
        let is = |names: &[&str]| {
            derives
                .iter()
                .any(|derive| names.contains(&derive.as_str()))
        };
        // The doc comment of a group of arguments is shown nowhere.
        if is(&["Parser"]) {
            self.take_docs(attributes);
        }
        let outer = self.docs_are_shown;
        self.docs_are_shown = is(&["Parser", "Args", "Subcommand", "ValueEnum"]);
        visit(self);
        self.docs_are_shown = outer;
    }
}

impl<'a> Visit<'a> for Reader {
    fn visit_item(&mut self, item: &'a syn::Item) {
        match item {
            syn::Item::Struct(item) => {
                self.item(&item.attrs, |reader| visit::visit_item_struct(reader, item));
            }
            syn::Item::Enum(item) => {
                self.item(&item.attrs, |reader| visit::visit_item_enum(reader, item));
            }
            syn::Item::Fn(item) if is_for_tests(&item.attrs) => {}
            syn::Item::Mod(item) if is_for_tests(&item.attrs) => {}
            syn::Item::Mod(item) if item.content.is_none() => {
                self.modules.push(Module {
                    name: item.ident.to_string(),
                    path: item.attrs.iter().find_map(|one| text_of(one, "path")),
                });
            }
            other => visit::visit_item(self, other),
        }
    }

    fn visit_field(&mut self, field: &'a syn::Field) {
        if self.docs_are_shown {
            self.take_docs(&field.attrs);
        }
        visit::visit_field(self, field);
    }

    fn visit_variant(&mut self, variant: &'a syn::Variant) {
        if self.docs_are_shown {
            self.take_docs(&variant.attrs);
        }
        visit::visit_variant(self, variant);
    }

    fn visit_attribute(&mut self, attribute: &'a Attribute) {
        let Meta::List(list) = &attribute.meta else {
            return;
        };
        let least_words = match name(&list.path).as_str() {
            "error" => 1,
            "arg" | "command" => 3,
            _ => return,
        };
        let literals = list.parse_args_with(literals).unwrap_or_default();
        for literal in literals {
            self.take(&literal.value(), least_words);
        }
    }

    fn visit_macro(&mut self, macro_call: &'a Macro) {
        let is_shown = SHOWN.contains(&name(&macro_call.path).as_str());
        let literals = macro_call.parse_body_with(literals).unwrap_or_default();
        for (index, literal) in literals.iter().enumerate() {
            let least_words = if is_shown && index == 0 { 2 } else { 3 };
            self.take(&literal.value(), least_words);
        }
    }

    fn visit_expr(&mut self, expression: &'a Expr) {
        if let Expr::Lit(literal) = expression
            && let Lit::Str(text) = &literal.lit
        {
            self.take(&text.value(), 3);
        }
        visit::visit_expr(self, expression);
    }
}

/// All string literals among these tokens, however deep, except those of attributes.
fn literals(input: ParseStream) -> syn::Result<Vec<LitStr>> {
    let mut found = Vec::new();
    while !input.is_empty() {
        let inner;
        if input.peek(LitStr) {
            found.push(input.parse()?);
        } else if input.peek(Token![#]) && input.peek2(syn::token::Bracket) {
            input.parse::<Token![#]>()?;
            let attribute;
            syn::bracketed!(attribute in input);
            attribute.step(|cursor| {
                let mut rest = *cursor;
                while let Some((_, next)) = rest.token_tree() {
                    rest = next;
                }
                Ok(((), rest))
            })?;
        } else if input.peek(syn::token::Paren) {
            syn::parenthesized!(inner in input);
            found.extend(literals(&inner)?);
        } else if input.peek(syn::token::Brace) {
            syn::braced!(inner in input);
            found.extend(literals(&inner)?);
        } else if input.peek(syn::token::Bracket) {
            syn::bracketed!(inner in input);
            found.extend(literals(&inner)?);
        } else {
            input.step(|cursor| match cursor.token_tree() {
                Some((_, rest)) => Ok(((), rest)),
                None => Err(cursor.error("no token")),
            })?;
        }
    }
    Ok(found)
}

/// The last part of a path.
fn name(path: &syn::Path) -> String {
    let last = path.segments.last();
    last.map(|part| part.ident.to_string()).unwrap_or_default()
}

fn derives(attributes: &[Attribute]) -> Vec<String> {
    let mut names = Vec::new();
    for attribute in attributes
        .iter()
        .filter(|one| one.path().is_ident("derive"))
    {
        let all = attribute.parse_nested_meta(|meta| {
            names.push(name(&meta.path));
            Ok(())
        });
        all.expect("a list of names");
    }
    names
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    let condition = |attribute: &Attribute| attribute.parse_args::<Meta>();
    let mut conditions = attributes.iter().filter(|one| one.path().is_ident("cfg"));
    conditions.any(|attribute| condition(attribute).is_ok_and(|one| asks_for_tests(&one)))
}

fn asks_for_tests(condition: &Meta) -> bool {
    let parse = Punctuated::<Meta, Token![,]>::parse_terminated;
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => list
            .parse_args_with(parse)
            .is_ok_and(|parts| parts.iter().any(asks_for_tests)),
        _ => false,
    }
}

/// The text of an attribute such as `#[doc = "text"]`.
fn text_of(attribute: &Attribute, name: &str) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else {
        return None;
    };
    match &pair.value {
        Expr::Lit(literal) if pair.path.is_ident(name) => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

/// Markup without its tags.
fn without_tags(text: &str) -> String {
    let is_markup =
        |text: &str| text.contains("</") || text.contains("/>") || text.starts_with('<');
    if !is_markup(text) {
        return text.to_owned();
    }
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, tag)) = rest.split_once('<') {
        plain += before;
        plain.push(' ');
        rest = tag.split_once('>').map_or("", |(_, behind)| behind);
    }
    plain += rest;
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Number of words beside placeholders. What begins like an option, a path or a tag is none.
fn words(text: &str) -> usize {
    let mut outside = String::new();
    let mut depth = 0_usize;
    for character in text.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ if depth == 0 => outside.push(character),
            _ => {}
        }
    }
    let is_word = |word: &&str| {
        let letters = word.trim_matches(|c: char| c.is_ascii_punctuation());
        letters.len() > 1
            && letters
                .chars()
                .all(|c| c.is_alphabetic() || c == '-' || c == '\'')
    };
    outside.split_whitespace().filter(is_word).count()
}
