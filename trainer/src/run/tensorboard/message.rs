//! Protocol buffers: encodes messages field by field.

/// A protocol buffer under construction.
#[derive(Default)]
pub(super) struct Message(pub(super) Vec<u8>);

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

    /// Appends an integer.
    pub(super) fn integer(&mut self, field: u64, value: u64) {
        self.key(field, 0);
        self.varint(value);
    }

    /// Appends a number in double precision.
    pub(super) fn double(&mut self, field: u64, value: f64) {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    /// Appends bytes, a string or a message.
    pub(super) fn bytes(&mut self, field: u64, value: &[u8]) {
        self.key(field, 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }

    /// Appends a number in single precision.
    pub(super) fn float(&mut self, field: u64, value: f32) {
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
