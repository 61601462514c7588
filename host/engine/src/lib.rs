//! The pure core of Belljar: the decision protocol's rules.
#![forbid(unsafe_code)]
