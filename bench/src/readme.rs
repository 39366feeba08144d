//! Compiles the programs in the documentation with the tests: this package depends on all crates
//! that they use.
#![cfg_attr(doctest, doc = include_str!("../../README.md"))]
#![cfg_attr(doctest, doc = include_str!("../../docs/data.md"))]
#![cfg_attr(doctest, doc = include_str!("../../docs/library.md"))]
#![cfg_attr(doctest, doc = include_str!("../../docs/learner.md"))]
#![cfg_attr(doctest, doc = include_str!("../../docs/virtual-ranks.md"))]
