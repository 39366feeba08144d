//! Text as tokens: its bytes, in windows.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datasets::DatasetError;

use crate::config::TextConfig;
use crate::system::whole_file;

/// Text that the trainer brings along: chapters I to III of Lewis Carroll's "Alice's Adventures in
/// Wonderland" (1865, in the public domain), from the Millennium Fulcrum Edition 2.9 of Project
/// Gutenberg in the Canterbury Corpus.
const ALICE: &str = include_str!("alice.txt");
/// Line between two parts of that text.
const PART: &str = "\n\n* * *\n\n";

/// Number of predicted tokens: all bytes.
pub const VOCABULARY: usize = 256;
/// The token before the first one of a document. It is never predicted.
pub const START: i32 = 256;
/// Number of input tokens.
pub const TOKENS: usize = VOCABULARY + 1;

/// Documents of one split in windows of at most `context` tokens.
///
/// Every token is predicted in one window. Windows do not cross documents, so the last one of a
/// document may be shorter.
#[derive(Clone, Debug)]
pub struct Text {
    documents: Arc<Vec<Vec<u8>>>,
    windows: Vec<Window>,
    context: usize,
}

/// Tokens of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    document: usize,
    start: usize,
    length: usize,
}

impl Text {
    /// Makes windows of documents.
    pub fn new(documents: Vec<Vec<u8>>, context: usize) -> Self {
        let mut windows = Vec::new();
        for (document, bytes) in documents.iter().enumerate() {
            for start in (0..bytes.len()).step_by(context.max(1)) {
                let length = context.min(bytes.len() - start);
                windows.push(Window {
                    document,
                    start,
                    length,
                });
            }
        }
        Self {
            documents: Arc::new(documents),
            windows,
            context,
        }
    }

    /// Opens the text for training. The second value opens the test text.
    ///
    /// # Errors
    /// Fails if a file cannot be read, or there are none.
    pub fn open(
        config: &TextConfig,
    ) -> Result<(Self, impl FnOnce() -> Result<Self, DatasetError>), DatasetError> {
        let documents = match &config.path {
            Some(path) => read(path, "data.path")?,
            None => ALICE
                .split(PART)
                .map(|part| part.as_bytes().to_vec())
                .collect(),
        };
        let (train, test) = match &config.test_path {
            Some(path) => (documents, Err(path)),
            None => {
                let parts = documents.into_iter();
                let parts = parts.map(|document| split(document, config.test_share));
                let (train, test) = parts.unzip();
                (train, Ok(test))
            }
        };
        let context = config.context;
        let test = move || {
            let documents = test.or_else(|path| read(path, "data.test_path"))?;
            Ok(Self::new(documents, context))
        };
        Ok((Self::new(train, context), test))
    }

    /// Divides the windows into those for training and the last ones of the documents, about
    /// `share` of all windows.
    ///
    /// A document gives as many as bring the documents up to it closest to their share.
    pub fn divided(self, share: f64) -> [Self; 2] {
        let (mut train, mut last) = (Vec::new(), Vec::new());
        let mut seen = 0;
        for document in self
            .windows
            .chunk_by(|one, next| one.document == next.document)
        {
            seen += document.len();
            let wanted = (seen as f64 * share).round() as usize;
            let taken = wanted.saturating_sub(last.len()).min(document.len());
            let (kept, rest) = document.split_at(document.len() - taken);
            train.extend_from_slice(kept);
            last.extend_from_slice(rest);
        }
        [train, last].map(|windows| Self {
            documents: self.documents.clone(),
            windows,
            context: self.context,
        })
    }

    /// Takes some windows.
    pub fn pick(&self, indices: &[usize]) -> Self {
        let window = |index: &usize| self.windows.get(*index).copied();
        Self {
            documents: self.documents.clone(),
            windows: indices.iter().filter_map(window).collect(),
            context: self.context,
        }
    }

    /// Number of windows.
    pub fn len(&self) -> usize {
        self.windows.len()
    }

    /// Maximum tokens of a window.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.windows.iter().map(|window| window.length).sum()
    }

    /// CRC-32C of all documents.
    pub fn checksum(&self) -> u32 {
        let add = |sum, document: &Vec<u8>| {
            let length = (document.len() as u64).to_le_bytes();
            crc32c::crc32c_append(crc32c::crc32c_append(sum, &length), document)
        };
        self.documents.iter().fold(0, add)
    }

    /// Predicted tokens of a window and the token before each.
    pub fn window(&self, index: usize) -> Option<(Vec<i32>, Vec<i32>)> {
        let Window {
            document,
            start,
            length,
        } = *self.windows.get(index)?;
        let bytes = self.documents.get(document)?.get(..start + length)?;
        let before = match start {
            0 => START,
            _ => i32::from(*bytes.get(start - 1)?),
        };
        let targets: Vec<i32> = bytes[start..].iter().map(|byte| i32::from(*byte)).collect();
        let inputs = std::iter::once(before).chain(targets.iter().copied());
        Some((inputs.take(length).collect(), targets))
    }
}

/// The first and the last part of a document.
fn split(mut document: Vec<u8>, share: f64) -> (Vec<u8>, Vec<u8>) {
    let test = (document.len() as f64 * share).round() as usize;
    let rest = document.split_off(document.len() - test.min(document.len()));
    (document, rest)
}

/// The content of a text file, or of all text files in a folder, in the order of their paths.
fn read(path: &Path, key: &'static str) -> Result<Vec<Vec<u8>>, DatasetError> {
    let io = |path: &Path, source| DatasetError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    };
    let mut files = Vec::new();
    match path.is_dir() {
        true => list(path, &mut files).map_err(|(path, source)| io(&path, source))?,
        false => files.push(path.to_owned()),
    }
    files.sort();
    let mut documents = Vec::new();
    for file in files {
        let bytes = whole_file::read(&file).map_err(|source| io(&file, source))?;
        if !bytes.is_empty() {
            documents.push(bytes);
        }
    }
    match documents.is_empty() {
        false => Ok(documents),
        true => Err(DatasetError::Settings {
            what: key,
            reason: format!("{} contains no text (.txt or .md)", path.display()),
        }),
    }
}

/// The text files of a folder and its subfolders.
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), (PathBuf, std::io::Error)> {
    let fail = |source| (folder.to_owned(), source);
    for entry in std::fs::read_dir(folder).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(fail)?);
        let ending = path.extension().and_then(|ending| ending.to_str());
        // A link to a folder could lead back here.
        if kind.is_dir() {
            list(&path, files)?;
        } else if matches!(ending, Some("txt" | "md")) && path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_predicted_once_from_the_one_before() {
        let text = Text::new(vec![b"abcdefg".to_vec(), b"xy".to_vec()], 3);
        let windows: Vec<_> = (0..text.len())
            .map(|index| text.window(index).unwrap())
            .collect();
        let chars = |tokens: &[i32]| -> String {
            let char = |token: &i32| u8::try_from(*token).map_or('^', char::from);
            tokens.iter().map(char).collect()
        };
        let told: Vec<[String; 2]> = windows
            .iter()
            .map(|(inputs, targets)| [chars(inputs), chars(targets)])
            .collect();
        let expected = [["^ab", "abc"], ["cde", "def"], ["f", "g"], ["^x", "xy"]];
        assert_eq!(told, expected);
        assert_eq!((text.tokens(), text.window(4)), (9, None));
    }

    #[test]
    fn the_last_windows_of_documents_are_for_validation() {
        let text = |lengths: &[usize]| {
            let documents = lengths.iter().map(|length| vec![b'a'; 2 * length]);
            Text::new(documents.collect(), 2)
        };
        let starts = |text: &Text| -> Vec<(usize, usize)> {
            let windows = text.windows.iter();
            windows
                .map(|window| (window.document, window.start / 2))
                .collect()
        };
        let [train, last] = text(&[10, 5, 5]).divided(0.2);
        assert_eq!(starts(&last), [(0, 8), (0, 9), (1, 4), (2, 4)]);
        let mut all = [starts(&train), starts(&last)].concat();
        all.sort_unstable();
        assert_eq!(all, starts(&text(&[10, 5, 5])));
        // Whole documents, if they are short.
        let [train, last] = text(&[1; 10]).divided(0.2);
        assert_eq!(starts(&last), [(2, 0), (7, 0)]);
        assert_eq!(train.len(), 8);
        let [train, last] = text(&[3]).divided(0.1);
        assert_eq!((train.len(), last.len()), (3, 0));
    }

    #[test]
    fn files_of_a_folder_are_documents_whose_ends_are_for_evaluation() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("b")).unwrap();
        for (name, text) in [
            ("b/2.txt", "0123456789"),
            ("1.md", "abcde"),
            ("c.bin", "no"),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let config = TextConfig {
            path: Some(folder.path().to_owned()),
            test_share: 0.2,
            context: 4,
            ..TextConfig::default()
        };
        let (train, test) = Text::open(&config).unwrap();
        let test = test().unwrap();
        assert_eq!((train.tokens(), test.tokens()), (12, 3));
        assert_eq!(test.window(0).unwrap().1, [i32::from(b'e')]);
        let apart = TextConfig {
            test_path: Some(folder.path().join("nowhere")),
            ..config.clone()
        };
        // Its files are read only if they are evaluated.
        let (train, test) = Text::open(&apart).unwrap();
        assert_eq!(train.tokens(), 15);
        let error = test().unwrap_err().to_string();
        assert!(error.contains("nowhere"), "{error}");
        let nowhere = TextConfig {
            path: Some(folder.path().join("nowhere")),
            ..config.clone()
        };
        let error = Text::open(&nowhere).err().unwrap().to_string();
        assert!(error.contains("nowhere"), "{error}");
        let empty = tempfile::tempdir().unwrap();
        let empty = TextConfig {
            path: Some(empty.path().to_owned()),
            ..config
        };
        let error = Text::open(&empty).err().unwrap().to_string();
        assert!(error.contains("contains no text"), "{error}");
    }

    #[test]
    fn the_built_in_text_has_several_documents() {
        let config = TextConfig::default();
        let (train, test) = Text::open(&config).unwrap();
        let test = test().unwrap();
        assert!(train.documents.len() > 2, "{}", train.documents.len());
        assert!(train.tokens() > 20_000 && test.tokens() > 2000);
    }
}
