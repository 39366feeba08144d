//! Messages at the beginning and the end of a run, and its summary.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use burn_dist::device::is_host;
use burn_dist::parallel::Checksum;

use super::Training;
use crate::config::Batching;
use crate::error::TrainError;
use crate::system::compute::kernels_name;
use crate::system::output::{complain, duration};
use crate::task::{Evaluation, Task};
use crate::{STOPPED_EARLY, report};

/// The way a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The run did all its steps.
    Complete,
    /// Early stopping or a callback ended the run, for this reason.
    Early(String),
    /// A time limit or a signal paused the run, for this reason. It should be resumed.
    Paused(String),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Complete => f.write_str("complete"),
            Self::Early(reason) => write!(f, "early: {reason}"),
            Self::Paused(reason) => write!(f, "paused: {reason}"),
        }
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The way the run ended.
    pub end: End,
    /// Whether the last state was written, if one was due.
    ///
    /// [`Trainer::run`](crate::Trainer::run) fails if it was not; callbacks see this before.
    pub saved: bool,
    /// Epochs begun.
    pub epochs: u64,
    /// Optimizer steps.
    pub steps: u64,
    /// Time from the first step of this process to the end, including evaluations.
    pub total_time: Duration,
    /// Training throughput over all ranks, without evaluations: images, tokens or other units per
    /// second.
    pub units_per_second: f64,
    /// Number of nodes.
    pub nodes: usize,
    /// Ranks on this node, each with its own device.
    pub devices_per_node: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// The last evaluation, if any.
    pub evaluation: Option<Evaluation>,
    /// Checksum of the parameters, verified to be equal on all ranks.
    pub checksum: Checksum,
    /// The run folder. Only on the main rank.
    pub run_dir: Option<PathBuf>,
}

impl Summary {
    /// A metric of the last evaluation by its name, such as `accuracy`, or its `loss`.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.evaluation.as_ref()?.metric(name)
    }

    /// Exit code for scripts and batch systems: 0, or 75 if the run should be started again.
    pub fn exit_code(&self) -> i32 {
        match self.end {
            End::Complete | End::Early(_) => 0,
            End::Paused(_) => STOPPED_EARLY,
        }
    }
}

impl<T: Task> Training<'_, T> {
    pub(super) fn summary(&self, end: End, saved: bool) -> Result<Summary, TrainError> {
        let (progress, before) = (&self.progress, &self.before);
        let steps = progress.steps - before.steps;
        let seconds = progress.train_seconds - before.train_seconds;
        let world = self.context.world;
        Ok(Summary {
            end,
            saved,
            epochs: progress.epoch,
            steps: progress.steps,
            total_time: self.begin.elapsed(),
            units_per_second: match steps {
                0 => 0.0,
                _ => self.units(steps) / seconds,
            },
            nodes: self.context.group.nodes(),
            devices_per_node: world.local_size(),
            world_size: world.size(),
            evaluation: progress.evaluation.clone(),
            checksum: self.parallel.verify_replicas()?,
            run_dir: self.run_dir.clone(),
        })
    }

    pub(super) fn introduce(&mut self, notes: &[String]) {
        let context = self.context;
        let Batching {
            global,
            micro,
            accumulate,
        } = context.batching;
        let (group, items) = (context.group, self.task.items());
        let size = group.size();
        self.console.line(&format!(
            "{}: {} parameters, {} training and {} {} {}",
            context.name,
            self.parallel.num_parameters(),
            items.train,
            items.eval,
            self.set(),
            T::WORDS.items,
        ));
        let ranks = match size {
            1 => "1 rank".to_owned(),
            _ => format!(
                "{size} ranks on {}, started by {}, over {}",
                match group.nodes() {
                    1 => "1 node".to_owned(),
                    nodes => format!("{nodes} nodes"),
                },
                context.world.launched_by(),
                group.transport()
            ),
        };
        self.console.line(&format!(
            "{ranks}, global batch {global} = {micro} × {accumulate} accumulated × {size}, {} \
             steps per epoch",
            self.steps_per_epoch
        ));
        self.console.line(&format!(
            "computes on {}: {}{}; kernels: {}, {} per rank",
            context.device.name,
            context.device.reason,
            match context.sharing.ranks {
                2.. if !is_host(&context.device.device) =>
                    format!(", shared by {} ranks", context.sharing.ranks),
                _ => String::new(),
            },
            kernels_name(context.config, &context.device.device),
            match rayon::current_num_threads() {
                1 => "1 thread".to_owned(),
                threads => format!("{threads} threads"),
            },
        ));
        if let Some(across) = self.parallel.replica_group() {
            let within = self.parallel.shard_group();
            let strategy = self.parallel.options().strategy;
            self.console.line(&format!(
                "{strategy} shards over {} ranks ({}), {} replicas ({})",
                within.size(),
                within.transport(),
                across.size(),
                across.transport(),
            ));
        }
        if let Some(folder) = &self.run_dir {
            self.console
                .line(&format!("run folder {}", folder.display()));
        }
        for note in notes {
            self.console.line(note);
        }
    }

    pub(super) fn conclude(&mut self, summary: &Summary) {
        match &summary.end {
            End::Complete => {}
            // The error says the rest.
            End::Paused(reason) if !summary.saved => self.console.line(&format!(
                "stopped after step {} because of {reason}",
                summary.steps
            )),
            End::Early(reason) => self.console.line(&format!("stopped early: {reason}")),
            End::Paused(reason) => self.console.line(&format!(
                "stopped after step {} because of {reason}; start the run again with --resume auto",
                summary.steps
            )),
        }
        let checksum = summary.checksum.to_string();
        let checksum = checksum.get(..16).unwrap_or_default();
        self.console.line(&match summary.world_size {
            1 => format!("parameters have the checksum {checksum}"),
            _ => format!("parameters are the same on all ranks, checksum {checksum}"),
        });
        self.console.line(&format!(
            "total time {}, throughput {:.0} {}/s, nodes {}, devices per node {}, world size \
             {}",
            duration(summary.total_time),
            summary.units_per_second,
            T::WORDS.units,
            summary.nodes,
            summary.devices_per_node,
            summary.world_size,
        ));
    }

    /// Writes the HTML report. A failure only warns: the run is done and saved.
    pub(super) fn report(&mut self) {
        let wanted = self.context.config.log.report;
        let Some(folder) = self.run_dir.as_deref().filter(|_| wanted) else {
            return;
        };
        let busy = self.context.group.busy();
        match busy.during(|| report::write(folder)) {
            Ok(file) => self.console.line(&format!("report {}", file.display())),
            Err(error) => complain(&format!("warning: no report: {error}")),
        }
    }
}
