//! The programs in the documentation, which are compiled with the tests: this package has all the
//! crates that they use.
#![cfg_attr(doctest, doc = include_str!("../../README.md"))]
#![cfg_attr(doctest, doc = include_str!("../../docs/library.md"))]
