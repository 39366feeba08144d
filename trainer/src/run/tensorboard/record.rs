//! TFRecord framing: length, its checksum, the bytes, their checksum.

/// Frames the bytes as a record.
pub fn frame(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(bytes.len() + 16);
    record.extend(length);
    record.extend(masked(&length).to_le_bytes());
    record.extend(bytes);
    record.extend(masked(bytes).to_le_bytes());
    record
}

/// Masked CRC-32C: a plain one would be weak over data that contains checksums.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_those_of_the_format() {
        // CRC-32C of "123456789" is the check value of the polynomial.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        let record = frame(b"abc");
        assert_eq!(record.len(), 8 + 4 + 3 + 4);
        assert_eq!(record[..8], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&record[12..15], b"abc");
        // Computed bit by bit, independently of this code.
        assert_eq!(record[15..], 0x21f1_576eu32.to_le_bytes());
    }
}
