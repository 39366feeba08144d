//! A module: directives, variables and kernels.

use super::function::{Surroundings, place_shared};
use super::text::{matching, without_comments};
use super::{Fill, Function, Invalid, Space, Variable, invalid};

/// A translation unit (PTX ISA, "PTX Module Directives").
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// The first architecture of `.target`, for example `sm_90a`.
    pub target: String,
    /// Variables in global and constant memory, in the order of [`Fill::Global`].
    pub globals: Vec<Variable>,
    /// Its kernels.
    pub functions: Vec<Function>,
}

impl Module {
    /// Parses the text of a module.
    ///
    /// # Errors
    ///
    /// Fails for a text that is not PTX, and for unknown declarations and operands.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let text = without_comments(text);
        let mut rest = text.trim_start();
        if !rest.starts_with(".version") {
            return invalid("a module that does not start with `.version`");
        }
        let mut reader = Reader::default();
        while !rest.is_empty() {
            rest = reader.item(rest)?.trim_start();
        }
        if reader.module.target.is_empty() {
            return invalid("a module without `.target`");
        }
        Ok(reader.module)
    }
}

#[derive(Default)]
struct Reader {
    module: Module,
    surroundings: Surroundings,
}

impl Reader {
    /// Parses the first item and returns the rest.
    fn item<'t>(&mut self, text: &'t str) -> Result<&'t str, Invalid> {
        let (line, after) = text.split_once('\n').unwrap_or((text, ""));
        let word = line.split_whitespace().next().unwrap_or("");
        match word {
            ".target" => {
                let target = line[word.len()..].split(',').next().unwrap_or("");
                self.module.target = target.trim().to_owned();
                Ok(after)
            }
            ".version" | ".address_size" | ".file" | ".loc" => Ok(after),
            ".section" => Ok(end_of_body(text)?.2),
            ".pragma" | ".alias" => match text.split_once(';') {
                Some((_, after)) => Ok(after),
                None => invalid(format!("`{word}` without an end")),
            },
            _ if word.starts_with('.') => self.declaration(text),
            _ => invalid(format!("`{word}` outside of functions")),
        }
    }

    fn declaration<'t>(&mut self, text: &'t str) -> Result<&'t str, Invalid> {
        let head = head(text);
        let has = |word: &str| head.split_whitespace().any(|w| w == word);
        let declared_only = text[head.len()..].starts_with(';');
        if (has(".entry") || has(".func")) && !declared_only {
            let (head, body, after) = end_of_body(text)?;
            // Calls are not implemented: a kernel with a call is refused, so other functions do not
            // matter.
            if has(".entry") {
                let function = Function::parse(head, body, &self.surroundings)?;
                self.module.functions.push(function);
            }
            return Ok(after);
        }
        let Some((declaration, after)) = text.split_once(';') else {
            return invalid(format!("`{}` without an end", head.trim()));
        };
        if !has(".entry") && !has(".func") {
            self.variable(declaration)?;
        }
        Ok(after)
    }

    fn variable(&mut self, text: &str) -> Result<(), Invalid> {
        let variable = Variable::parse(text)?;
        let name = variable.name.clone();
        let fill = match variable.space {
            Space::Shared => place_shared(&mut self.surroundings.shared, &variable),
            Space::Global if !variable.external => {
                self.module.globals.push(variable);
                Fill::Global(self.module.globals.len() - 1)
            }
            _ => return invalid(format!("declaration `{}`", text.trim())),
        };
        self.surroundings.symbols.insert(name, fill);
        Ok(())
    }
}

/// Returns the text up to the body, the initial value or the semicolon, whichever comes first.
fn head(text: &str) -> &str {
    &text[..text.find(['{', ';', '=']).unwrap_or(text.len())]
}

/// Returns the text before the first bracket, within it and after it.
fn end_of_body(text: &str) -> Result<(&str, &str, &str), Invalid> {
    let open = text.find('{');
    let Some((open, close)) = open.and_then(|open| Some((open, matching(text, open)?))) else {
        return invalid("a body without an end");
    };
    Ok((&text[..open], &text[open + 1..close], &text[close + 1..]))
}
