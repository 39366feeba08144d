//! Formats of weights files, and how a name says which.

use std::path::Path;

/// Format of a weights file to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// `.safetensors`.
    Safetensors,
    /// `.pt` or `.pth`: the format of `torch.save`, which `torch.load(weights_only=True)` reads.
    Pytorch,
}

impl Container {
    /// The endings of names, for messages.
    pub const ENDINGS: &'static str = ".safetensors, .pt or .pth";

    /// The format that the ending of `path` says, in any case.
    pub fn of_path(path: &Path) -> Option<Self> {
        let ending = path.extension()?.to_str()?.to_ascii_lowercase();
        match ending.as_str() {
            "safetensors" => Some(Self::Safetensors),
            "pt" | "pth" => Some(Self::Pytorch),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_says_the_format() {
        for (name, expected) in [
            ("a.safetensors", Some(Container::Safetensors)),
            ("a.b/c.PT", Some(Container::Pytorch)),
            ("model.pth", Some(Container::Pytorch)),
            ("model.onnx", None),
            ("model", None),
            (".pt", None),
        ] {
            assert_eq!(Container::of_path(Path::new(name)), expected, "{name}");
        }
    }
}
