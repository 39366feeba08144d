//! Parses and prints an augmentation as one text.

mod error;

use std::fmt;
use std::ops::RangeInclusive;
use std::str::{FromStr, Split};

use super::mix::Share;
use super::place::Border;
use super::resized_crop::ResizedCrop;
use super::{Augment, Colours, Frame, Parts};
pub use error::ParseAugmentError;

/// The operations in the order in which they are applied.
fn usage() -> Vec<&'static str> {
    let moves = [
        "repeat[:TIMES]",
        "shift[:PIXELS]",
        "crop[:PADDING[:zero|reflect]]",
        "resized-crop[:MIN_SCALE]",
        "flip[:P]",
    ];
    let mixes = ["mixup[:ALPHA[:P]]", "cutmix[:ALPHA[:P]]"];
    [&moves, Colours::USAGE, &mixes, Parts::USAGE].concat()
}

/// Far beyond useful values: the variance is practically 0, or the weights are 0 and 1.
const ALPHAS: RangeInclusive<f32> = 0.001..=1000.0;
/// With more, a batch would have hardly any different images.
const MAX_REPEAT: u8 = 16;
pub(super) const PROBABILITIES: RangeInclusive<f32> = 0.0..=1.0;

impl FromStr for Augment {
    type Err = ParseAugmentError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut augment = Augment::none();
        if text == "none" {
            return Ok(augment);
        }
        if let Some(padding) = text.strip_prefix("crop+flip:").map(str::parse)
            && let Ok(padding) = padding
        {
            let text = text.to_owned();
            return Err(ParseAugmentError::OldCropFlip { text, padding });
        }
        let mut places = Vec::new();
        for part in text.split('+') {
            places.push((augment.add(part)?, part));
        }
        if !places.is_sorted() {
            places.sort_unstable();
            let parts: Vec<&str> = places.into_iter().map(|(_, part)| part).collect();
            let instead = parts.join("+");
            return Err(ParseAugmentError::Order { instead });
        }
        augment.check_mixing()?;
        Ok(augment)
    }
}

impl Augment {
    /// Adds an operation and returns its position in the order.
    fn add(&mut self, part: &str) -> Result<usize, ParseAugmentError> {
        let mut words = part.split(':');
        let name = words.next().unwrap_or_default();
        let mut all = usage().into_iter().enumerate();
        let Some((place, usage)) = all.find(|(_, usage)| name_in(usage) == name) else {
            return Err(ParseAugmentError::Unknown { name: name.into() });
        };
        let mut read = Parameters {
            operation: part,
            usage,
            words,
        };
        match name {
            "repeat" => {
                let times = read.whole("TIMES", 3, 2..=MAX_REPEAT)?;
                once(&mut self.repeat, times, usage)?;
            }
            "shift" => {
                let pixels = read.whole("PIXELS", 2, 0..=u8::MAX)?;
                self.see(Frame::Shift { pixels }, usage)?;
            }
            "crop" => {
                let padding = read.whole("PADDING", 4, 0..=u8::MAX)?;
                let border = read.border()?;
                self.see(Frame::Crop { padding, border }, usage)?;
            }
            "resized-crop" => {
                let min_scale = read.number("MIN_SCALE", 0.08, 0.001..=1.0)?;
                self.see(Frame::Resized(ResizedCrop { min_scale }), usage)?;
            }
            "flip" => {
                let p = read.number("P", 0.5, PROBABILITIES)?;
                once(&mut self.flip, p, usage)?;
            }
            "mixup" => once(&mut self.mix.mixup, read.share(0.8)?, usage)?,
            "cutmix" => once(&mut self.mix.cutmix, read.share(1.0)?, usage)?,
            _ => {
                let _ = self.colours.add(usage, &mut read)? || self.parts.add(usage, &mut read)?;
            }
        }
        read.end()?;
        Ok(place)
    }

    fn see(&mut self, frame: Frame, usage: &'static str) -> Result<(), ParseAugmentError> {
        let same = |other: Frame| std::mem::discriminant(&other) == std::mem::discriminant(&frame);
        match self.frame {
            Some(other) if !same(other) => Err(ParseAugmentError::Exclusive {
                first: other.to_string(),
                second: frame.to_string(),
            }),
            _ => once(&mut self.frame, frame, usage),
        }
    }

    fn check_mixing(&self) -> Result<(), ParseAugmentError> {
        let p = |share: Option<Share>| share.map_or(0.0, |share| share.p);
        let (mixup, cutmix) = (p(self.mix.mixup), p(self.mix.cutmix));
        // Decimal fractions such as 0.9 and 0.1 may sum to more than 1 by rounding.
        if mixup + cutmix > 1.000_001 {
            return Err(ParseAugmentError::Mixing { mixup, cutmix });
        }
        Ok(())
    }
}

fn name_in(usage: &'static str) -> &'static str {
    usage.split('[').next().unwrap_or(usage)
}

pub(super) fn once<T>(
    slot: &mut Option<T>,
    value: T,
    usage: &'static str,
) -> Result<(), ParseAugmentError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(ParseAugmentError::Twice {
            name: name_in(usage),
        }),
    }
}

/// The words after an operation's name, read one by one.
pub(super) struct Parameters<'a> {
    operation: &'a str,
    usage: &'static str,
    words: Split<'a, char>,
}

impl Parameters<'_> {
    pub(super) fn whole<T: FromStr + PartialOrd + fmt::Display>(
        &mut self,
        parameter: &'static str,
        default: T,
        range: RangeInclusive<T>,
    ) -> Result<T, ParseAugmentError> {
        self.next("a whole number", parameter, default, range)
    }

    pub(super) fn number(
        &mut self,
        parameter: &'static str,
        default: f32,
        range: RangeInclusive<f32>,
    ) -> Result<f32, ParseAugmentError> {
        self.next("a number", parameter, default, range)
    }

    fn next<T: FromStr + PartialOrd + fmt::Display>(
        &mut self,
        kind: &str,
        parameter: &'static str,
        default: T,
        range: RangeInclusive<T>,
    ) -> Result<T, ParseAugmentError> {
        let Some(word) = self.words.next() else {
            return Ok(default);
        };
        match word.parse() {
            Ok(value) if range.contains(&value) => Ok(value),
            _ => {
                let expected = format!("{kind} from {} to {}", range.start(), range.end());
                Err(self.wrong(parameter, word, expected))
            }
        }
    }

    fn share(&mut self, alpha: f32) -> Result<Share, ParseAugmentError> {
        Ok(Share {
            alpha: self.number("ALPHA", alpha, ALPHAS)?,
            p: self.number("P", 0.5, PROBABILITIES)?,
        })
    }

    fn border(&mut self) -> Result<Border, ParseAugmentError> {
        match self.words.next() {
            None | Some("zero") => Ok(Border::Zero),
            Some("reflect") => Ok(Border::Reflect),
            Some(word) => Err(self.wrong("the border", word, "zero or reflect".into())),
        }
    }

    fn wrong(&self, parameter: &'static str, given: &str, expected: String) -> ParseAugmentError {
        ParseAugmentError::Parameter {
            operation: self.operation.into(),
            parameter,
            given: given.into(),
            expected,
            usage: self.usage,
        }
    }

    fn end(&mut self) -> Result<(), ParseAugmentError> {
        match self.words.next() {
            None => Ok(()),
            Some(_) => Err(ParseAugmentError::Surplus {
                operation: self.operation.into(),
                usage: self.usage,
            }),
        }
    }
}

impl fmt::Display for Augment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |name| move |Share { alpha, p }| format!("{name}:{alpha}:{p}");
        let moves = [
            self.repeat.map(|times| format!("repeat:{times}")),
            self.frame.map(|frame| frame.to_string()),
            self.flip.map(|p| format!("flip:{p}")),
        ];
        let mixes = [
            self.mix.mixup.map(share("mixup")),
            self.mix.cutmix.map(share("cutmix")),
        ];
        let mut parts: Vec<String> = moves.into_iter().flatten().collect();
        parts.extend(self.colours.texts());
        parts.extend(mixes.into_iter().flatten());
        parts.extend(self.parts.texts());
        match parts.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&parts.join("+")),
        }
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Frame::Shift { pixels } => write!(f, "shift:{pixels}"),
            Frame::Crop {
                padding,
                border: Border::Zero,
            } => write!(f, "crop:{padding}:zero"),
            Frame::Crop {
                padding,
                border: Border::Reflect,
            } => write!(f, "crop:{padding}:reflect"),
            Frame::Resized(ResizedCrop { min_scale }) => write!(f, "resized-crop:{min_scale}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn error(text: &str) -> String {
        match text.parse::<Augment>() {
            Ok(augment) => panic!("{text} is {augment}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn defaults_are_filled_in() {
        for (text, full) in [
            ("none", "none"),
            ("shift", "shift:2"),
            ("crop", "crop:4:zero"),
            ("crop:0", "crop:0:zero"),
            ("crop:8:reflect", "crop:8:reflect"),
            ("resized-crop", "resized-crop:0.08"),
            ("flip", "flip:0.5"),
            ("rand-augment", "rand-augment:2:9"),
            ("rand-augment:1", "rand-augment:1:9"),
            ("repeat+auto-augment", "repeat:3+auto-augment"),
            ("flip+three-augment", "flip:0.5+three-augment"),
            (
                "three-augment+color-jitter",
                "three-augment+color-jitter:0.4:0",
            ),
            (
                "color-jitter:0.3:0.1+erase",
                "color-jitter:0.3:0.1+erase:0.25",
            ),
            ("mixup", "mixup:0.8:0.5"),
            ("cutmix", "cutmix:1:0.5"),
            ("mixup:0.2:0.9+cutmix:1.0:0.1", "mixup:0.2:0.9+cutmix:1:0.1"),
            ("cutout", "cutout:16"),
            ("erase", "erase:0.25"),
            (
                "crop:4+flip+rand-augment:2:9+mixup:0.8:0.25+cutmix:1.0:0.25+erase:0.25",
                "crop:4:zero+flip:0.5+rand-augment:2:9+mixup:0.8:0.25+cutmix:1:0.25+erase:0.25",
            ),
        ] {
            let augment: Augment = text.parse().unwrap();
            assert_eq!(augment.to_string(), full);
            assert_eq!(full.parse(), Ok(augment));
        }
        assert!("none".parse::<Augment>().unwrap().is_none());
    }

    #[test]
    fn errors_name_the_wrong_part() {
        for (text, parts) in [
            ("", &["\"\"", "none", "rand-augment[:OPS[:MAGNITUDE]]"][..]),
            ("rotate", &["\"rotate\"", "erase[:P]"]),
            ("crop+none", &["\"none\"", "\"none\" alone"]),
            ("crop++flip", &["\"\""]),
            ("Crop", &["\"Crop\""]),
            (
                "shift:",
                &["PIXELS is \"\"", "a whole number from 0 to 255"],
            ),
            ("flip+shift:-1", &["\"shift:-1\"", "PIXELS is \"-1\""]),
            (
                "crop:256",
                &["PADDING", "0 to 255", "crop[:PADDING[:zero|reflect]]"],
            ),
            ("crop:4:edge", &["\"edge\"", "zero or reflect"]),
            (
                "crop:4:zero:1",
                &["too many", "crop[:PADDING[:zero|reflect]]"],
            ),
            ("none:1", &["\"none\""]),
            ("flip:1.5", &["P is \"1.5\"", "a number from 0 to 1"]),
            ("erase:nan", &["\"nan\""]),
            ("resized-crop:0", &["MIN_SCALE"]),
            ("rand-augment:2:31", &["MAGNITUDE", "0 to 30"]),
            ("repeat:1", &["TIMES", "2 to 16"]),
            ("auto-augment:2", &["too many", "auto-augment"]),
            ("mixup:0", &["ALPHA"]),
            ("three-augment:1", &["too many", "three-augment"]),
            ("color-jitter:11", &["STRENGTH", "0 to 10"]),
            ("color-jitter:1:0.6", &["HUE", "0 to 0.5"]),
            ("cutmix:inf", &["ALPHA"]),
            ("cutout:0", &["SIDE"]),
            ("flip+flip:0.3", &["\"flip\"", "twice"]),
            ("crop:1+crop:2", &["\"crop\"", "twice"]),
            (
                "shift:1+crop",
                &["\"shift:1\"", "\"crop:4:zero\"", "Keep one"],
            ),
            ("mixup:1:0.7+cutmix:1:0.4", &["0.7", "0.4", "at most 1"]),
            ("erase+flip+crop:2", &["\"crop:2+flip+erase\""]),
            ("crop+flip:4", &["write \"crop:4+flip\""]),
            ("crop+flip:1", &["write \"crop:1+flip\""]),
        ] {
            let message = error(text);
            for part in parts {
                assert!(message.contains(part), "{text}: {message}");
            }
        }
    }

    fn operation() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("none".to_owned()),
            any::<u8>().prop_map(|n| format!("shift:{n}")),
            (any::<u8>(), prop_oneof!["zero", "reflect", "x"])
                .prop_map(|(n, b)| format!("crop:{n}:{b}")),
            (0.0f32..1.2).prop_map(|p| format!("flip:{p}")),
            (0.0f32..1.2).prop_map(|p| format!("resized-crop:{p}")),
            (0u8..20).prop_map(|n| format!("repeat:{n}")),
            Just("auto-augment".to_owned()),
            Just("three-augment".to_owned()),
            (0.0f32..11.0, 0.0f32..0.6).prop_map(|(s, h)| format!("color-jitter:{s}:{h}")),
            (0u8..16, 0u8..32).prop_map(|(n, m)| format!("rand-augment:{n}:{m}")),
            (0.0f32..1100.0, 0.0f32..1.2).prop_map(|(a, p)| format!("mixup:{a}:{p}")),
            (0.0f32..2.0, 0.0f32..1.2).prop_map(|(a, p)| format!("cutmix:{a}:{p}")),
            any::<u16>().prop_map(|n| format!("cutout:{n}")),
            (0.0f32..1.2).prop_map(|p| format!("erase:{p}")),
        ]
    }

    proptest! {
        #[test]
        fn what_is_understood_reads_back(parts in prop::collection::vec(operation(), 1..5)) {
            if let Ok(augment) = parts.join("+").parse::<Augment>() {
                prop_assert_eq!(augment.to_string().parse(), Ok(augment));
            }
        }

        #[test]
        fn no_text_panics(text in "[a-z:+0-9.-]{0,30}|\\PC*") {
            let _ = text.parse::<Augment>();
        }
    }
}
