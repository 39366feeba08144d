//! Messages at the beginning and the end of a run, and its summary.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use burn_dist::checkpoint;
use burn_dist::device::is_host;
use burn_dist::parallel::Checksum;

use super::Training;
use crate::config::DataKind;
use crate::config::metric::LOSS;
use crate::config::run_name::CHECKPOINTS;
use crate::error::TrainError;
use crate::system::compute::kernels_name;
use crate::system::output::{complain, counted, duration};
use crate::task::{Evaluation, Measure, Task};
use crate::train::progress::Best;
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
    /// Hours of this process's total time, times the devices of all ranks.
    pub device_hours: f64,
    /// The best evaluation of the run, if any.
    pub best: Option<Best>,
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
        let total_time = self.begin.elapsed();
        let hours = total_time.as_secs_f64() / 3600.0;
        Ok(Summary {
            end,
            saved,
            epochs: progress.epoch,
            steps: progress.steps,
            total_time,
            units_per_second: match steps {
                0 => 0.0,
                _ => self.units(steps) / seconds,
            },
            nodes: self.context.group.nodes(),
            devices_per_node: world.local_size(),
            world_size: world.size(),
            device_hours: hours * self.context.sharing.devices as f64,
            best: progress.best_evaluation.clone(),
            evaluation: progress.evaluation.clone(),
            checksum: self.parallel.verify_replicas()?,
            run_dir: self.run_dir.clone(),
        })
    }

    /// Says what is trained, by which ranks, and on which device; `model` is the model's name.
    pub(super) fn introduce(&mut self, model: &str, notes: &[String]) {
        let lines = [
            self.about_model_and_data(model),
            self.about_ranks(),
            self.about_device(),
        ];
        let shards = self.about_shards();
        let folder = self.run_dir.as_deref();
        let folder = folder.map(|folder| format!("run folder {}", folder.display()));
        for line in lines.iter().chain(&shards).chain(&folder).chain(notes) {
            self.console.line(line);
        }
    }

    fn about_model_and_data(&self, model: &str) -> String {
        let (items, data) = (self.task.items(), &self.context.config.data);
        let folder = match &data.kind {
            DataKind::ImageFolder(folder) => folder.dir.as_deref(),
            DataKind::MaskFolder(folder) => folder.dir.as_deref(),
            _ => None,
        };
        format!(
            "model {model}, {} parameters; data {}{}, {} training and {} {} {}; {} per epoch",
            self.parallel.num_parameters(),
            data.kind.name(),
            folder.map_or_else(String::new, |folder| format!(" {}", folder.display())),
            items.train,
            items.eval,
            self.set(),
            T::WORDS.items,
            counted(self.steps_per_epoch, "step"),
        )
    }

    fn about_ranks(&self) -> String {
        let context = self.context;
        let group = context.group;
        let how = match group.size() {
            1 => String::new(),
            _ => format!(
                ", launcher {}, transport {}",
                context.world.launched_by(),
                transport_words(group.transport())
            ),
        };
        let ranks = ranks_and_nodes(group.size(), group.nodes());
        format!(
            "{ranks}{how}; global batch {}",
            context.batching.words(&context.config.parallel)
        )
    }

    fn about_device(&self) -> String {
        let (config, chosen) = (self.context.config, &self.context.device);
        let on_host = is_host(&chosen.device);
        let shared = match self.context.sharing.ranks {
            ranks @ 2.. if !on_host => format!(", shared by {ranks} ranks"),
            _ => String::new(),
        };
        format!(
            "device {} ({}{shared}); precision {}; kernels {}; {} per rank",
            if on_host { "CPU" } else { &chosen.name },
            chosen.reason,
            config.train.precision,
            kernels_name(config, &chosen.device),
            counted(rayon::current_num_threads() as u64, "thread"),
        )
    }

    /// How the ranks share shards and replicas, if they do both.
    fn about_shards(&self) -> Option<String> {
        let (across, within) = (self.parallel.replica_group()?, self.parallel.shard_group());
        Some(format!(
            "{} shards over {} ranks ({}), {} replicas ({})",
            self.parallel.options().strategy,
            within.size(),
            transport_words(within.transport()),
            across.size(),
            transport_words(across.transport()),
        ))
    }

    pub(super) fn conclude(&mut self, summary: &Summary) {
        match &summary.end {
            End::Complete => {}
            // The error says the rest, or the agents start the ranks again.
            End::Paused(reason) if !summary.saved || self.is_of_agent() => self.console.line(
                &format!("stopped after step {} because of {reason}", summary.steps),
            ),
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
        let best = summary.best.as_ref();
        let lines = [
            best.map(|best| best_in_words(best, self.task.measures(), self.set())),
            self.kept_checkpoint(best.map(|best| best.step)),
        ];
        for line in lines.into_iter().flatten() {
            self.console.line(&line);
        }
        self.console.line(&costs_in_words(summary, T::WORDS.units));
    }

    /// The path of the checkpoint after the best evaluation, or else of the last one. Only on the
    /// main rank.
    fn kept_checkpoint(&self, best: Option<u64>) -> Option<String> {
        let folder = self.run_dir.as_deref()?.join(CHECKPOINTS);
        let all = checkpoint::list(&folder).ok()?;
        let (last, best) = (
            all.last()?,
            all.iter().find(|found| Some(found.step) == best),
        );
        Some(match best {
            Some(best) if best.step != last.step => format!(
                "best checkpoint {}, last checkpoint {}",
                best.path.display(),
                last.path.display()
            ),
            _ => format!("checkpoint {}", last.path.display()),
        })
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

/// The best evaluation: its deciding metric, epoch and step, and then all other metrics.
fn best_in_words(best: &Best, measures: &[Measure], set: &str) -> String {
    let all = std::iter::once(&LOSS).chain(measures);
    let said = |measure: &Measure| {
        let value = best.evaluation.metric(&measure.name)?;
        Some(format!("{} {}", measure.label, measure.shown.text(value)))
    };
    let (by, others): (Vec<_>, Vec<_>) = all.partition(|measure| measure.name == best.by);
    let by: String = by.into_iter().filter_map(said).collect();
    let others: Vec<String> = others.into_iter().filter_map(said).collect();
    let others = match others.is_empty() {
        true => String::new(),
        false => format!("; {}", others.join(", ")),
    };
    let (epoch, step) = (best.epoch, best.step);
    format!("best {set} {by} in epoch {epoch}, step {step}{others}")
}

/// Time, throughput, ranks and device-hours of this process's part of a run.
fn costs_in_words(summary: &Summary, units: &str) -> String {
    let throughput = match summary.units_per_second {
        // A process that only evaluates has none.
        0.0 => String::new(),
        rate => format!(", throughput {rate:.0} {units}/s"),
    };
    let hours = summary.device_hours;
    let decimals = match hours {
        10.0.. => 0,
        0.1.. => 2,
        _ => 4,
    };
    format!(
        "total time {}{throughput}, {}, {hours:.decimals$} device-hours",
        duration(summary.total_time),
        ranks_and_nodes(summary.world_size, summary.nodes),
    )
}

/// Such as `4 ranks on 2 nodes`.
fn ranks_and_nodes(ranks: usize, nodes: usize) -> String {
    let count = |number: usize, name: &str| match number {
        1 => format!("1 {name}"),
        _ => format!("{number} {name}s"),
    };
    match ranks {
        1 => count(1, "rank"),
        _ => format!("{} on {}", count(ranks, "rank"), count(nodes, "node")),
    }
}

/// The name of a transport for people.
fn transport_words(name: &str) -> String {
    let parts = name.split('+').map(|part| match part {
        "shm" => "shared memory",
        "tcp" => "TCP",
        "mpi" => "MPI",
        other => other,
    });
    parts.collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_evaluation_is_told_with_all_its_metrics() {
        let measures = [
            Measure::share("accuracy", "accuracy"),
            Measure::share("top5", "top-5 accuracy"),
        ];
        let best = |by: &str| Best {
            by: by.to_owned(),
            epoch: 3,
            step: 90,
            evaluation: Evaluation::new(0.25, 9, [("accuracy", 0.5), ("top5", 0.75)]),
        };
        assert_eq!(
            best_in_words(&best("accuracy"), &measures, "val"),
            "best val accuracy 50.00 % in epoch 3, step 90; loss 0.2500, top-5 accuracy 75.00 %"
        );
        let words = best_in_words(&best("loss"), &[], "test");
        assert_eq!(words, "best test loss 0.2500 in epoch 3, step 90");
    }

    #[test]
    fn a_process_that_trained_nothing_has_no_throughput() {
        let mut summary = Summary {
            end: End::Complete,
            saved: true,
            epochs: 1,
            steps: 10,
            total_time: Duration::from_secs(360),
            units_per_second: 12.0,
            nodes: 2,
            devices_per_node: 2,
            world_size: 4,
            device_hours: 0.4,
            best: None,
            evaluation: None,
            checksum: Checksum([0; 32]),
            run_dir: None,
        };
        let words = costs_in_words(&summary, "images");
        let all = "total time 6 min 00 s, throughput 12 images/s, 4 ranks on 2 nodes, 0.40 \
                   device-hours";
        assert_eq!(words, all);
        (summary.units_per_second, summary.world_size) = (0.0, 1);
        let words = costs_in_words(&summary, "images");
        assert_eq!(words, "total time 6 min 00 s, 1 rank, 0.40 device-hours");
    }

    #[test]
    fn transports_have_their_usual_names() {
        assert_eq!(transport_words("shm+tcp"), "shared memory and TCP");
        assert_eq!(transport_words("mpi"), "MPI");
        assert_eq!(ranks_and_nodes(16, 4), "16 ranks on 4 nodes");
        assert_eq!(ranks_and_nodes(2, 1), "2 ranks on 1 node");
    }
}
