//! All ranks verify a checkpoint together: each reads a part of its files.
//!
//! Rank 0 proposes one checkpoint after the other, and finally sends its result. The others wait
//! for its questions, and all wait for the slowest answer, as long as reading takes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use burn_dist::checkpoint::{CheckpointError, Manifest};
use burn_dist::{Error, ProcessGroup};

use crate::run::group::gather_whenever;

/// First byte of rank 0's messages: a question with the path of a checkpoint, or the result.
const QUESTION: u8 = 0;
const LAST_WORD: u8 = 1;

/// Verifies the checkpoint at `path` with the help of all ranks. Called on rank 0.
pub(super) fn ask(path: &Path, group: &ProcessGroup) -> Result<(), CheckpointError> {
    let not_good = |rank: usize, reason: String| CheckpointError::NotGood {
        rank,
        path: path.to_owned(),
        reason,
    };
    let asked = say(QUESTION, path.as_os_str().as_bytes(), group);
    asked.map_err(|error| not_good(0, error.to_string()))?;
    let own = verify_part(path, group);
    let answer = own.as_ref().err().map(ToString::to_string);
    let answers = gather_whenever(group, answer.unwrap_or_default().as_bytes())
        .map_err(|error| not_good(0, error.to_string()))?;
    own?;
    let bad = (0..).zip(answers).find(|(_, answer)| !answer.is_empty());
    bad.map_or(Ok(()), |(rank, answer)| {
        Err(not_good(
            rank,
            String::from_utf8_lossy(&answer).into_owned(),
        ))
    })
}

/// Tells the others rank 0's result, and returns it.
pub(super) fn conclude(message: Vec<u8>, group: &ProcessGroup) -> Result<Vec<u8>, Error> {
    say(LAST_WORD, &message, group)?;
    Ok(message)
}

/// Answers rank 0's questions, and returns its result.
pub(super) fn help(group: &ProcessGroup) -> Result<Vec<u8>, Error> {
    loop {
        let said = gather_whenever(group, &[])?;
        match said.first().and_then(|first| first.split_first()) {
            Some((&QUESTION, path)) => {
                let verified = verify_part(Path::new(OsStr::from_bytes(path)), group);
                let answer = verified.map_or_else(|error| error.to_string(), |()| String::new());
                gather_whenever(group, answer.as_bytes())?;
            }
            Some((_, message)) => return Ok(message.to_vec()),
            None => return Ok(Vec::new()),
        }
    }
}

fn say(kind: u8, content: &[u8], group: &ProcessGroup) -> Result<(), Error> {
    gather_whenever(group, &[&[kind], content].concat()).map(drop)
}

/// Verifies every n-th file from this rank's number on, for n ranks. No two ranks read the same
/// file.
fn verify_part(path: &Path, group: &ProcessGroup) -> Result<(), CheckpointError> {
    let manifest = Manifest::read(path)?;
    let own = manifest.files.iter().skip(group.rank());
    own.step_by(group.size())
        .try_for_each(|file| file.verify(path))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use burn::optim::SgdConfig;
    use burn::tensor::Device;
    use burn_dist::GroupOptions;
    use burn_dist::checkpoint::{Job, Writer};
    use burn_dist::parallel::{Parallel, Strategy};
    use models::CscCnnConfig;

    use super::super::{Resume, Start};
    use super::*;
    use crate::config::run_name::CHECKPOINTS;

    /// Writes two checkpoints of two ranks.
    fn write(folder: &Path, group: &ProcessGroup) {
        let model = CscCnnConfig::new()
            .init(&Device::flex().autodiff())
            .unwrap();
        let training = Parallel::new(model, SgdConfig::new(), Strategy::Zero1, group).unwrap();
        let mut writer = Writer::start(folder, group, Duration::from_secs(30)).unwrap();
        for step in [1, 2] {
            let written = writer.submit(Job {
                step,
                state: training.state().unwrap(),
                meta: serde_json::Value::Null,
                keep: 2,
                best: Vec::new(),
            });
            assert!(written.is_none_or(|written| written.is_ok()));
        }
        while let Some(written) = writer.wait() {
            written.unwrap();
        }
        writer.meet(group).unwrap();
        writer.close(group).unwrap();
    }

    #[test]
    fn every_rank_verifies_its_part_of_a_checkpoint() {
        let run = tempfile::tempdir().unwrap();
        let folder = run.path().join(CHECKPOINTS);
        let groups = ProcessGroup::in_process(2, &GroupOptions::default()).unwrap();
        std::thread::scope(|scope| {
            for group in groups {
                let (run, folder) = (run.path(), folder.as_path());
                scope.spawn(move || {
                    write(folder, &group);
                    if group.rank() == 0 {
                        let newest = folder.join("step-0000000002");
                        let files = Manifest::read(&newest).unwrap().files;
                        let damaged = newest.join(&files[1].name);
                        let mut bytes = std::fs::read(&damaged).unwrap();
                        *bytes.last_mut().unwrap() ^= 1;
                        std::fs::write(damaged, bytes).unwrap();
                    }
                    group.barrier().unwrap();
                    let start = Start::find(&Resume::Auto, Some(run), "name", false, &group);
                    let start = start.unwrap();
                    let found = start.checkpoint.unwrap();
                    assert!(found.ends_with("step-0000000001"), "{found:?}");
                    let note = &start.notes[0];
                    assert!(
                        note.contains("rank 1 could not verify") && note.contains("checksum"),
                        "{note}"
                    );
                });
            }
        });
    }
}
