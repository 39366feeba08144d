//! Errors whose `Debug` is their message, because `fn main() -> Result<(), _>` prints `Debug`.

/// Implements `Debug` of error types as their `Display`.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_is_display {
    ($($error:ty),+) => {$(
        impl std::fmt::Debug for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )+};
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_main_prints_is_the_message() {
        let error = "brief".parse::<crate::Compression>().unwrap_err();
        assert_eq!(format!("{error:?}"), error.to_string());
    }
}
