//! Writes captions in any script.
//!
//! The program contains Noto Sans for Latin, Greek, Cyrillic, Hebrew and Arabic, which look alike
//! on every machine. Other scripts need a font of the system.

use std::collections::BTreeSet;

use cosmic_text::fontdb::Database;
use cosmic_text::{
    Attrs, Buffer, Color, Ellipsize, EllipsizeHeightLimit, Family, FontSystem, Metrics, Shaping,
    SwashCache, Wrap,
};
use image::{Rgb, RgbImage};

/// Height of a line, in pixels.
pub const LINE: u32 = 17;
/// Size of the font, in pixels.
const SIZE: f32 = 12.0;
const INK: Rgb<u8> = Rgb([20, 20, 20]);
const FAMILY: &str = "Noto Sans";
const FONTS: [&[u8]; 3] = [
    include_bytes!("../../../fonts/NotoSans.ttf"),
    include_bytes!("../../../fonts/NotoSansHebrew.ttf"),
    include_bytes!("../../../fonts/NotoSansArabic.ttf"),
];
/// Characters of a caption that are laid out at most. More do not fit.
const MOST: usize = 400;

/// Fonts, and the characters that none of them has.
pub struct Writer {
    fonts: FontSystem,
    cache: SwashCache,
    missing: BTreeSet<char>,
}

impl Writer {
    /// Loads the fonts of the program and of the system.
    pub fn new() -> Self {
        let mut fonts = own_fonts();
        fonts.load_system_fonts();
        Self::of(fonts)
    }

    fn of(fonts: Database) -> Self {
        Self {
            fonts: FontSystem::new_with_locale_and_db("en-US".to_owned(), fonts),
            cache: SwashCache::new(),
            missing: BTreeSet::new(),
        }
    }

    /// The written characters that no font has, in order.
    pub fn missing(&self) -> String {
        self.missing.iter().collect()
    }

    /// Writes one line whose upper left corner is at `at`.
    ///
    /// A line wider than `room` ends in an ellipsis. One that reads from right to left begins at
    /// the right. A line that the layout cannot handle stays blank, and its characters are missing.
    pub fn write(&mut self, picture: &mut RgbImage, text: &str, at: [u32; 2], room: u32) {
        let text: String = text.chars().take(MOST).map(shown).collect();
        if contained::run(|| self.draw(picture, &text, at, room)).is_err() {
            self.missing.extend(text.chars());
        }
    }

    fn draw(&mut self, picture: &mut RgbImage, text: &str, at: [u32; 2], room: u32) {
        let mut line = Buffer::new(&mut self.fonts, Metrics::new(SIZE, LINE as f32));
        line.set_wrap(Wrap::None);
        line.set_ellipsize(Ellipsize::End(EllipsizeHeightLimit::Lines(1)));
        line.set_size(Some(room as f32), Some(LINE as f32));
        let attributes = Attrs::new().family(Family::Name(FAMILY));
        line.set_text(text, &attributes, Shaping::Advanced, None);
        line.shape_until_scroll(&mut self.fonts, false);
        for run in line.layout_runs() {
            let unknown = run.glyphs.iter().filter(|glyph| glyph.glyph_id == 0);
            let parts = unknown.filter_map(|glyph| run.text.get(glyph.start..glyph.end));
            self.missing.extend(parts.flat_map(str::chars));
        }
        let [red, green, blue] = INK.0;
        let ink = Color::rgb(red, green, blue);
        let place = |start: u32, by: i32, room: u32| {
            let by = u32::try_from(by).ok().filter(|by| *by < room)?;
            start.checked_add(by)
        };
        line.draw(
            &mut self.fonts,
            &mut self.cache,
            ink,
            |x, y, _, _, color| {
                let (x, y) = (place(at[0], x, room), place(at[1], y, LINE));
                if let (Some(x), Some(y)) = (x, y)
                    && let Some(pixel) = picture.get_pixel_mut_checked(x, y)
                {
                    blend(pixel, color);
                }
            },
        );
    }
}

/// The character, or a stand-in for one that would begin a line or move the pen.
fn shown(character: char) -> char {
    match character {
        '\u{2028}' | '\u{2029}' => char::REPLACEMENT_CHARACTER,
        _ if character.is_control() => char::REPLACEMENT_CHARACTER,
        _ => character,
    }
}

fn own_fonts() -> Database {
    let mut fonts = Database::new();
    for font in FONTS {
        fonts.load_font_data(font.to_vec());
    }
    fonts
}

fn blend(pixel: &mut Rgb<u8>, color: Color) {
    let share = u16::from(color.a());
    for (channel, ink) in pixel.0.iter_mut().zip([color.r(), color.g(), color.b()]) {
        let mixed = u16::from(*channel) * (255 - share) + u16::from(ink) * share;
        *channel = (mixed / 255) as u8;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Three Chinese characters (猫犬字) of Droid Sans Fallback, Apache License 2.0.
    const HAN: &[u8] = include_bytes!("../../../tests/fixtures/han.ttf");
    const ROOM: u32 = 120;

    /// Writes `text` without fonts of the system; returns the darkness of every column.
    fn columns(writer: &mut Writer, text: &str) -> Vec<u32> {
        let mut picture = RgbImage::from_pixel(ROOM + 20, LINE, Rgb([255; 3]));
        writer.write(&mut picture, text, [0, 0], ROOM);
        let column = |x| (0..LINE).map(move |y| (x, y));
        let dark = |(x, y)| 255 - u32::from(picture.get_pixel(x, y).0[0]);
        (0..picture.width())
            .map(|x| column(x).map(dark).sum())
            .collect()
    }

    fn own() -> Writer {
        Writer::of(own_fonts())
    }

    #[test]
    fn many_scripts_need_no_font_of_the_system() {
        let mut writer = own();
        let mut seen = Vec::new();
        for text in ["cat", "größer", "γάτα", "кошка", "חתול", "قطة", "mèo"] {
            let columns = columns(&mut writer, text);
            assert!(columns.iter().sum::<u32>() > 2000, "{text}");
            assert_eq!(writer.missing(), "", "{text}");
            assert!(!seen.contains(&columns), "{text}");
            seen.push(columns);
        }
    }

    #[test]
    fn right_to_left_begins_at_the_right_and_letters_join() {
        let mut writer = own();
        let inked = |columns: &[u32]| -> u32 { columns.iter().sum() };
        let hebrew = columns(&mut writer, "חתול");
        let (left, right) = hebrew.split_at(ROOM as usize / 2);
        assert!(inked(left) == 0 && inked(right) > 2000);
        let latin = columns(&mut writer, "cat");
        assert_eq!(inked(&latin[ROOM as usize / 2..]), 0);
        // Joined letters are narrower than the same letters kept apart by a non-joiner.
        let width = |columns: &[u32]| columns.iter().filter(|ink| **ink > 0).count();
        let joined = columns(&mut writer, "كلب");
        let apart = columns(&mut writer, "ك\u{200c}ل\u{200c}ب");
        assert!(width(&joined) < width(&apart));
    }

    #[test]
    fn other_scripts_use_the_fonts_that_are_there() {
        let mut writer = own();
        columns(&mut writer, "猫 cat 犬");
        assert_eq!(writer.missing(), "犬猫");
        let mut fonts = own_fonts();
        fonts.load_font_data(HAN.to_vec());
        let mut writer = Writer::of(fonts);
        let cat = columns(&mut writer, "猫");
        assert!(cat.iter().sum::<u32>() > 2000);
        assert_ne!(cat, columns(&mut writer, "犬"));
        assert_eq!(writer.missing(), "");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn any_text_stays_in_its_room(text in "\\PC{0,12}[א-ת]{0,4}\\PC{0,4}") {
            let columns = columns(&mut own(), &text);
            prop_assert!(columns[ROOM as usize..].iter().all(|ink| *ink == 0));
        }
    }

    #[test]
    fn long_and_strange_lines_keep_their_room() {
        let mut writer = own();
        for text in [
            "w".repeat(10_000),
            "قطة ".repeat(99),
            "a\u{0}\n\u{7f}b".to_owned(),
        ] {
            let columns = columns(&mut writer, &text);
            assert!(columns[ROOM as usize..].iter().all(|ink| *ink == 0));
            assert!(columns.iter().sum::<u32>() > 500);
        }
        assert_eq!(columns(&mut writer, "").iter().sum::<u32>(), 0);
    }
}
