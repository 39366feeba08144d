//! The program in README, which is compiled with the tests: this package has all the crates that it
//! uses.
#![cfg_attr(doctest, doc = include_str!("../../README.md"))]
