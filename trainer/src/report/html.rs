//! HTML of a page: one self-contained file that may fetch nothing.

use std::fmt::Write;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Maximum characters of a name.
const NAME: usize = 48;

/// Escapes text for an element or a quoted attribute.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(character),
            // HTML forbids control characters.
            character if character.is_control() => escaped.push('\u{fffd}'),
            character => escaped.push(character),
        }
    }
    escaped
}

/// A name, escaped and shortened.
pub fn name(text: &str) -> String {
    shortened(text, NAME)
}

/// The first characters, escaped.
pub fn shortened(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        None => escape(text),
        Some((end, _)) => format!("{}…", escape(text.get(..end).unwrap_or_default())),
    }
}

/// A complete page. `body` is HTML, `title` is text.
pub fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; \
         style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n\
         <script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    )
}

/// The maps of the runs' steps to epochs and seconds, which are JSON, for the script.
pub fn positions(runs: impl Iterator<Item = String>) -> String {
    let runs = runs.collect::<Vec<_>>().join(",");
    format!(
        "<div id=\"runs\" hidden data-runs=\"[{}]\"></div>\n",
        escape(&runs)
    )
}

/// Buttons that choose the axes of the plots. The script shows them.
pub fn axes() -> &'static str {
    "<div class=\"axes\" hidden>\n\
     <span class=\"axis\">horizontal axis <span class=\"choice\">\
     <button type=\"button\" data-axis=\"step\">step</button>\
     <button type=\"button\" data-axis=\"epoch\">epoch</button>\
     <button type=\"button\" data-axis=\"time\">time</button></span></span>\n\
     <span class=\"axis\">vertical axis <span class=\"choice\">\
     <button type=\"button\" data-scale=\"auto\">automatic</button>\
     <button type=\"button\" data-scale=\"linear\">linear</button>\
     <button type=\"button\" data-scale=\"log\">log</button></span></span>\n</div>\n"
}

/// A section with a heading; empty if the content is.
pub fn section(heading: &str, content: &str) -> String {
    match content.is_empty() {
        true => String::new(),
        false => format!("<section>\n<h2>{heading}</h2>\n{content}</section>\n"),
    }
}

/// A table. Head and cells are HTML.
pub fn table(class: &str, head: &[String], rows: &[Vec<String>]) -> String {
    let mut table = format!("<div class=\"scroll\"><table class=\"{class}\">\n");
    if !head.is_empty() {
        let _ = writeln!(table, "<tr><th>{}</th></tr>", head.join("</th><th>"));
    }
    for row in rows {
        let _ = writeln!(table, "<tr><td>{}</td></tr>", row.join("</td><td>"));
    }
    table.push_str("</table></div>\n");
    table
}

/// The most important numbers. Names and values are HTML.
pub fn cards(cards: &[(String, String)]) -> String {
    let mut html = "<div class=\"cards\">\n".to_owned();
    for (name, value) in cards {
        let _ = writeln!(html, "<div><b>{value}</b><span>{name}</span></div>");
    }
    html.push_str("</div>\n");
    html
}

/// Seconds in human-readable form.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..60 => format!("{seconds:.1} s"),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let text = "<script>alert(\"1\" & '2')</script>\u{0}\n";
        let escaped = escape(text);
        assert_eq!(
            escaped,
            "&lt;script&gt;alert(&quot;1&quot; &amp; &#39;2&#39;)&lt;/script&gt;\u{fffd}\n"
        );
        assert_eq!(shortened("ä<b", 2), "ä&lt;…");
        let page = page("</title><script>", "");
        assert_eq!(page.matches("<script>").count(), 1);
    }

    #[test]
    fn durations_are_readable() {
        let texts = [0.25, 61.0, 3661.0].map(duration);
        assert_eq!(texts, ["0.2 s", "1 min 01 s", "1 h 01 min"]);
    }
}
