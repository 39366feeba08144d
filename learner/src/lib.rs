//! Distributed training for the `Learner` of burn-train.
