//! Outputs of all ranks on rank 0.

use burn::tensor::{DType, Device, TensorData};
use burn_core::data::dataloader::Progress;
use burn_dist::ProcessGroup;
use burn_dist::collective::MOST_GATHERED;
use serde::{Deserialize, Serialize};

use crate::error::LearnerError;
use crate::output::{GlobalOutput, Part, Parts};

/// Most bytes of all ranks that travel at once.
const AT_ONCE: u64 = MOST_GATHERED / 4;

/// A message that each rank sends after a batch.
#[derive(Serialize, Deserialize)]
struct Message {
    /// Items of this rank that are processed, and all of them.
    processed: u64,
    total: u64,
    /// `None` if the rank had no batch.
    output: Option<Sent>,
}

#[derive(Serialize, Deserialize)]
struct Sent {
    weight: f64,
    parts: Vec<Part>,
}

/// A batch's outputs and progress over all ranks; without outputs on all ranks but rank 0.
pub(crate) struct Gathered<T> {
    /// One output of the global batch. One of every rank if their shapes do not fit each other.
    pub(crate) outputs: Vec<T>,
    pub(crate) progress: Progress,
}

/// Sends the output of this rank, if it had a batch of `samples` samples, to rank 0. A collective
/// call.
pub(crate) fn outputs<T: GlobalOutput>(
    group: &ProcessGroup,
    own: Option<T>,
    samples: f64,
    progress: &Progress,
    device: &Device,
) -> Result<Gathered<T>, LearnerError> {
    if group.size() == 1 {
        return Ok(Gathered {
            outputs: own.into_iter().collect(),
            progress: progress.clone(),
        });
    }
    let output = own.map(|output| {
        let weight = output.weight().unwrap_or(samples);
        let parts = output.into_parts().map_err(LearnerError::output)?;
        Ok::<_, LearnerError>(Sent { weight, parts })
    });
    let message = Message {
        processed: progress.items_processed as u64,
        total: progress.items_total as u64,
        output: output.transpose()?,
    };
    let own = postcard::to_allocvec(&message).map_err(LearnerError::output)?;
    let mut sent = Vec::new();
    let (mut processed, mut total) = (0, 0);
    for bytes in bytes_of_all(group, &own)? {
        let message: Message = postcard::from_bytes(&bytes).map_err(LearnerError::output)?;
        processed += message.processed as usize;
        total += message.total as usize;
        sent.extend(message.output);
    }
    let rebuilt = |parts| {
        T::from_parts(&mut Parts::new(parts, device))
            .ok_or_else(|| LearnerError::output("from_parts does not take what into_parts gave"))
    };
    let outputs = match joined(sent) {
        Ok(parts) => vec![rebuilt(parts)?],
        Err(sent) => sent
            .into_iter()
            .map(|sent| rebuilt(sent.parts))
            .collect::<Result<_, _>>()?,
    };
    Ok(Gathered {
        outputs,
        progress: Progress::new(processed, total, progress.unit.clone()),
    })
}

/// The bytes of all ranks, in rank order, on rank 0; nothing elsewhere.
fn bytes_of_all(group: &ProcessGroup, own: &[u8]) -> Result<Vec<Vec<u8>>, burn_dist::Error> {
    let lengths = group.gather_bytes(&(own.len() as u64).to_le_bytes())?;
    let length = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes);
    let longest = lengths.iter().map(length).max().unwrap_or(0) as usize;
    let step = (AT_ONCE as usize / group.size()).max(1);
    let mut all = match group.rank() {
        0 => vec![Vec::new(); group.size()],
        _ => Vec::new(),
    };
    for start in (0..longest).step_by(step) {
        let end = own.len().min(start + step);
        let piece = own.get(start..end).unwrap_or_default();
        for (bytes, piece) in all.iter_mut().zip(group.gather_bytes(piece)?) {
            bytes.extend(piece);
        }
    }
    Ok(all)
}

/// The parts of the global batch; the outputs as they are if they do not fit each other.
fn joined(mut sent: Vec<Sent>) -> Result<Vec<Part>, Vec<Sent>> {
    if sent.len() == 1 {
        return Ok(sent.remove(0).parts);
    }
    let count = sent.first().map_or(0, |first| first.parts.len());
    if sent.is_empty() || sent.iter().any(|other| other.parts.len() != count) {
        return Err(sent);
    }
    let parts: Option<Vec<Part>> = (0..count)
        .map(|index| {
            let parts = sent.iter().map(|sent| &sent.parts[index]);
            let is_mean = parts.clone().all(|part| part.is_mean);
            let data = match is_mean {
                true => mean(parts.zip(sent.iter().map(|sent| sent.weight))),
                false => rows(parts),
            };
            data.map(|data| Part { data, is_mean })
        })
        .collect();
    parts.ok_or(sent)
}

/// The weighted mean of single numbers.
fn mean<'a>(parts: impl Iterator<Item = (&'a Part, f64)>) -> Option<TensorData> {
    let (mut sum, mut weights, mut dtype) = (0.0, 0.0, DType::F32);
    for (part, weight) in parts {
        dtype = part.data.dtype();
        sum += weight * part.data.iter::<f64>().next()?;
        weights += weight;
    }
    let mean = TensorData::new(vec![sum / weights], [1]);
    mean.try_cast(dtype).ok()
}

/// All rows, if they have the same shape and type.
fn rows<'a>(parts: impl Iterator<Item = &'a Part>) -> Option<TensorData> {
    let mut joined: Option<(Vec<usize>, DType, Vec<u8>)> = None;
    for part in parts {
        let shape: Vec<usize> = part.data.shape().iter().copied().collect();
        let (&own, row) = shape.split_first()?;
        match &mut joined {
            None => joined = Some((shape, part.data.dtype(), part.data.as_bytes().to_vec())),
            Some((shape, dtype, bytes)) => {
                if shape.get(1..)? != row || *dtype != part.data.dtype() {
                    return None;
                }
                *shape.first_mut()? += own;
                bytes.extend(part.data.as_bytes());
            }
        }
    }
    let (shape, dtype, bytes) = joined?;
    TensorData::try_from_bytes_vec(bytes, shape, dtype).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(weight: f64, loss: f32, rows: &[f32], width: usize) -> Sent {
        let part = |data, is_mean| Part { data, is_mean };
        Sent {
            weight,
            parts: vec![
                part(TensorData::new(vec![loss], [1]), true),
                part(
                    TensorData::new(rows.to_vec(), [rows.len() / width, width]),
                    false,
                ),
            ],
        }
    }

    #[test]
    fn means_count_by_weight_and_rows_follow_each_other() {
        let all = vec![
            sent(3.0, 1.0, &[1.0, 2.0, 3.0, 4.0], 2),
            sent(1.0, 5.0, &[5.0, 6.0], 2),
        ];
        let parts = joined(all).ok().unwrap();
        assert_eq!(parts[0].data, TensorData::new(vec![2.0f32], [1]));
        let rows = vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
        assert_eq!(parts[1].data, TensorData::new(rows, [3, 2]));
    }

    #[test]
    fn outputs_that_do_not_fit_stay_apart() {
        let all = vec![sent(1.0, 1.0, &[1.0, 2.0], 2), sent(1.0, 1.0, &[1.0; 3], 3)];
        assert_eq!(joined(all).err().map(|apart| apart.len()), Some(2));
        assert!(joined(Vec::new()).is_err());
    }

    #[test]
    fn long_outputs_travel_in_pieces() {
        let options = burn_dist::GroupOptions::default();
        let groups = ProcessGroup::in_process(2, &options).unwrap();
        let long = AT_ONCE as usize / 2 + 10;
        let all = std::thread::scope(|scope| {
            let ranks: Vec<_> = groups
                .into_iter()
                .map(|group| {
                    scope.spawn(move || {
                        let length = [3, long][group.rank()];
                        bytes_of_all(&group, &vec![group.rank() as u8; length]).unwrap()
                    })
                })
                .collect();
            ranks
                .into_iter()
                .map(|rank| rank.join().unwrap())
                .collect::<Vec<_>>()
        });
        let lengths: Vec<usize> = all[0].iter().map(Vec::len).collect();
        assert_eq!(lengths, [3, long]);
        assert!(all[0][1].iter().all(|byte| *byte == 1));
        assert!(all[1].is_empty());
    }
}
