//! Messages of TensorBoard's plugin for hyper-parameters
//! ([plugin_data.proto](https://github.com/tensorflow/tensorboard/blob/master/tensorboard/plugins/hparams/plugin_data.proto)).

use super::message::Message;

/// Tag of the start of a session.
pub(super) const START: &str = "_hparams_/session_start_info";
/// Tag of its end.
pub(super) const END: &str = "_hparams_/session_end_info";

// Field numbers.
const DATA_START: u64 = 3;
const DATA_END: u64 = 4;
const START_VALUES: u64 = 1;
const START_SECONDS: u64 = 5;
const END_STATUS: u64 = 1;
const END_SECONDS: u64 = 2;
const ENTRY_KEY: u64 = 1;
const ENTRY_VALUE: u64 = 2;
const VALUE_NUMBER: u64 = 2;
const VALUE_STRING: u64 = 3;
const VALUE_BOOL: u64 = 4;

/// Value of a hyper-parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum HyperParameter {
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
    /// A truth value.
    Bool(bool),
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// `STATUS_SUCCESS`.
    Success = 1,
    /// `STATUS_FAILURE`.
    Failure = 2,
}

/// The start of a session at `seconds` since 1970.
pub(super) fn session_start(
    values: impl IntoIterator<Item = (String, HyperParameter)>,
    seconds: f64,
) -> Vec<u8> {
    let mut start = Message::default();
    for (key, value) in values {
        let mut of_value = Message::default();
        match value {
            HyperParameter::Number(number) => of_value.double(VALUE_NUMBER, number),
            HyperParameter::Text(text) => of_value.bytes(VALUE_STRING, text.as_bytes()),
            HyperParameter::Bool(truth) => of_value.integer(VALUE_BOOL, u64::from(truth)),
        }
        let mut entry = Message::default();
        entry.bytes(ENTRY_KEY, key.as_bytes());
        entry.bytes(ENTRY_VALUE, &of_value.0);
        start.bytes(START_VALUES, &entry.0);
    }
    start.double(START_SECONDS, seconds);
    let mut data = Message::default();
    data.bytes(DATA_START, &start.0);
    data.0
}

/// The end of a session at `seconds` since 1970.
pub(super) fn session_end(end: SessionEnd, seconds: f64) -> Vec<u8> {
    let mut message = Message::default();
    message.integer(END_STATUS, end as u64);
    message.double(END_SECONDS, seconds);
    let mut data = Message::default();
    data.bytes(DATA_END, &message.0);
    data.0
}
