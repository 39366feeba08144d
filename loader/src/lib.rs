//! Samplers and batches of any data set for distributed training.
