//! The kinds of `Event` messages that a run writes, encoded as protocol buffers.

use std::borrow::Cow;

use super::message::Message;

/// First event of every file. From version 2 on, TensorBoard honors [`Event::Start`].
const VERSION: &str = "brain.Event:2";

// Field numbers from event.proto, summary.proto and tensor.proto of TensorBoard.
const EVENT_WALL_TIME: u64 = 1;
const EVENT_STEP: u64 = 2;
const EVENT_FILE_VERSION: u64 = 3;
const EVENT_SUMMARY: u64 = 5;
const EVENT_SESSION_LOG: u64 = 7;
const SUMMARY_VALUE: u64 = 1;
const VALUE_TAG: u64 = 1;
const VALUE_SIMPLE: u64 = 2;
const VALUE_TENSOR: u64 = 8;
const VALUE_METADATA: u64 = 9;
const METADATA_PLUGIN: u64 = 1;
const PLUGIN_NAME: u64 = 1;
const PLUGIN_CONTENT: u64 = 2;
const VALUE_IMAGE: u64 = 4;
const IMAGE_HEIGHT: u64 = 1;
const IMAGE_WIDTH: u64 = 2;
const IMAGE_COLORSPACE: u64 = 3;
const IMAGE_ENCODED: u64 = 4;
/// RGB.
const COLORSPACE: u64 = 3;
const TENSOR_DTYPE: u64 = 1;
const TENSOR_SHAPE: u64 = 2;
const TENSOR_STRINGS: u64 = 8;
/// `DT_STRING`.
const TENSOR_STRING: u64 = 7;
const SESSION_STATUS: u64 = 1;
const SESSION_START: u64 = 1;

/// One event.
#[derive(Debug)]
pub enum Event {
    /// The version of the format.
    Version,
    /// A process resumes at this step: TensorBoard drops later steps of older files.
    Start {
        /// The first step of the process.
        step: u64,
    },
    /// Named numbers.
    Scalars {
        /// Their step.
        step: u64,
        /// The numbers.
        values: Vec<(Cow<'static, str>, f64)>,
    },
    /// A named text in Markdown.
    Text {
        /// Its step.
        step: u64,
        /// Its name.
        tag: Cow<'static, str>,
        /// The text.
        text: String,
    },
    /// A named image.
    Image {
        /// Its step.
        step: u64,
        /// Its name.
        tag: String,
        /// Width and height in pixels.
        size: [u64; 2],
        /// The image as a PNG file.
        png: Vec<u8>,
    },
    /// The start or the end of a session with hyper-parameters.
    HyperParameters {
        /// Its name.
        tag: &'static str,
        /// The message of the plugin.
        content: Vec<u8>,
    },
}

impl Event {
    /// Encodes the message with its time in seconds since 1970.
    pub fn encode(&self, wall_time: f64) -> Vec<u8> {
        let mut message = Message::default();
        message.double(EVENT_WALL_TIME, wall_time);
        match self {
            Self::Version => message.bytes(EVENT_FILE_VERSION, VERSION.as_bytes()),
            Self::Start { step } => {
                let mut session = Message::default();
                session.integer(SESSION_STATUS, SESSION_START);
                message.integer(EVENT_STEP, *step);
                message.bytes(EVENT_SESSION_LOG, &session.0);
            }
            Self::Scalars { step, values } => {
                let mut summary = Message::default();
                for (tag, value) in values {
                    let mut scalar = Message::default();
                    scalar.bytes(VALUE_TAG, tag.as_bytes());
                    scalar.float(VALUE_SIMPLE, *value as f32);
                    summary.bytes(SUMMARY_VALUE, &scalar.0);
                }
                message.integer(EVENT_STEP, *step);
                message.bytes(EVENT_SUMMARY, &summary.0);
            }
            Self::Text { step, tag, text } => {
                message.integer(EVENT_STEP, *step);
                message.bytes(EVENT_SUMMARY, &text_summary(tag, text).0);
            }
            Self::Image {
                step,
                tag,
                size: [width, height],
                png,
            } => {
                let mut image = Message::default();
                image.integer(IMAGE_HEIGHT, *height);
                image.integer(IMAGE_WIDTH, *width);
                image.integer(IMAGE_COLORSPACE, COLORSPACE);
                image.bytes(IMAGE_ENCODED, png);
                let mut value = Message::default();
                value.bytes(VALUE_TAG, tag.as_bytes());
                value.bytes(VALUE_IMAGE, &image.0);
                message.integer(EVENT_STEP, *step);
                message.bytes(EVENT_SUMMARY, &summary(&value).0);
            }
            Self::HyperParameters { tag, content } => {
                let mut value = Message::default();
                value.bytes(VALUE_TAG, tag.as_bytes());
                value.bytes(VALUE_METADATA, &metadata("hparams", content).0);
                message.bytes(EVENT_SUMMARY, &summary(&value).0);
            }
        }
        message.0
    }
}

/// A summary of one value.
fn summary(value: &Message) -> Message {
    let mut summary = Message::default();
    summary.bytes(SUMMARY_VALUE, &value.0);
    summary
}

/// The plugin that shows a value, and its data.
fn metadata(plugin: &str, content: &[u8]) -> Message {
    let mut data = Message::default();
    data.bytes(PLUGIN_NAME, plugin.as_bytes());
    if !content.is_empty() {
        data.bytes(PLUGIN_CONTENT, content);
    }
    let mut metadata = Message::default();
    metadata.bytes(METADATA_PLUGIN, &data.0);
    metadata
}

/// A text: a scalar tensor of one string.
fn text_summary(tag: &str, text: &str) -> Message {
    let mut tensor = Message::default();
    tensor.integer(TENSOR_DTYPE, TENSOR_STRING);
    tensor.bytes(TENSOR_SHAPE, &[]);
    tensor.bytes(TENSOR_STRINGS, text.as_bytes());
    let mut value = Message::default();
    value.bytes(VALUE_TAG, tag.as_bytes());
    value.bytes(VALUE_TENSOR, &tensor.0);
    value.bytes(VALUE_METADATA, &metadata("text", &[]).0);
    summary(&value)
}

/// Width and height of a PNG file. `None` for any other file.
pub(super) fn size_of_png(file: &[u8]) -> Option<[u64; 2]> {
    let sizes = file.strip_prefix(b"\x89PNG\r\n\x1a\n")?.get(8..16)?;
    let (width, height) = sizes.split_first_chunk::<4>()?;
    let height = height.first_chunk::<4>()?;
    Some([*width, *height].map(|size| u64::from(u32::from_be_bytes(size))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_an_image_is_in_its_file() {
        let mut file = std::io::Cursor::new(Vec::new());
        let picture = image::RgbImage::new(7, 3);
        picture
            .write_to(&mut file, image::ImageFormat::Png)
            .unwrap();
        assert_eq!(size_of_png(file.get_ref()), Some([7, 3]));
        assert_eq!(size_of_png(b"GIF89a"), None);
    }
}
