//! The kinds of `Event` messages that a run writes, encoded as protocol buffers.

use std::borrow::Cow;

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
        tag: &'static str,
        /// The text.
        text: String,
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
                let mut plugin = Message::default();
                plugin.bytes(PLUGIN_NAME, b"text");
                let mut metadata = Message::default();
                metadata.bytes(METADATA_PLUGIN, &plugin.0);
                // A scalar tensor of one string.
                let mut tensor = Message::default();
                tensor.integer(TENSOR_DTYPE, TENSOR_STRING);
                tensor.bytes(TENSOR_SHAPE, &[]);
                tensor.bytes(TENSOR_STRINGS, text.as_bytes());
                let mut value = Message::default();
                value.bytes(VALUE_TAG, tag.as_bytes());
                value.bytes(VALUE_TENSOR, &tensor.0);
                value.bytes(VALUE_METADATA, &metadata.0);
                let mut summary = Message::default();
                summary.bytes(SUMMARY_VALUE, &value.0);
                message.integer(EVENT_STEP, *step);
                message.bytes(EVENT_SUMMARY, &summary.0);
            }
        }
        message.0
    }
}

/// A protocol buffer under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u64, wire_type: u64) {
        self.varint(field << 3 | wire_type);
    }

    fn integer(&mut self, field: u64, value: u64) {
        self.key(field, 0);
        self.varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.key(field, 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }

    fn float(&mut self, field: u64, value: f32) {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_encoded_as_the_specification_shows() {
        // The example of the specification: field 1 with 150.
        let mut message = Message::default();
        message.integer(1, 150);
        assert_eq!(message.0, [0x08, 0x96, 0x01]);
        let mut message = Message::default();
        message.bytes(2, b"testing");
        assert_eq!(message.0, b"\x12\x07testing");
    }
}
