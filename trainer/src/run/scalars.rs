//! The named numbers of a line of metrics, as TensorBoard and MLflow show them.

use std::borrow::Cow;

use crate::run::metrics::Metric;

/// The step and the named numbers of a line.
pub(crate) fn scalars(metric: &Metric) -> (u64, Vec<(Cow<'static, str>, f64)>) {
    let (step, values, own, norms) = match metric {
        Metric::Train(line) => {
            let optional = [
                ("train/memory_mib", line.memory_mib),
                ("train/tflops", line.tflops),
                ("train/share_of_peak", line.share_of_peak),
                ("train/gradient_norm", line.gradient_norm),
            ];
            let mut values = vec![
                ("train/loss", line.loss),
                ("train/lr", line.lr),
                ("time/data", line.time.data),
                ("time/forward", line.time.forward),
                ("time/backward", line.time.backward),
                ("time/wait", line.time.wait),
                ("time/update", line.time.update),
            ];
            let known = optional.into_iter();
            values.extend(known.filter_map(|(tag, value)| Some((tag, value?))));
            let rate = format!("train/{}", line.throughput.key());
            let own = vec![(rate, line.throughput.per_second)];
            (line.step, values, own, line.gradient_norms.as_ref())
        }
        Metric::Eval(line) => {
            // `train` has the losses of the steps.
            let set = match line.set.as_str() {
                set @ ("val" | "test") => set,
                _ => "eval",
            };
            let all = [("loss", line.loss), ("seconds", line.seconds)].into_iter();
            let all = all.chain(line.metrics.iter());
            let own = all.map(|(name, value)| (format!("{set}/{name}"), value));
            (line.step, Vec::new(), own.collect(), None)
        }
        Metric::Ranks(line) => {
            let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
            let mut values = vec![
                ("ranks/compute_max", most(&line.compute)),
                ("ranks/wait_max", most(&line.wait)),
                ("ranks/memory_mib_max", most(&line.memory_mib)),
            ];
            if !line.device_mib.is_empty() {
                values.push(("ranks/device_mib_max", most(&line.device_mib)));
            }
            (line.step, values, Vec::new(), None)
        }
        Metric::World(line) => {
            let values = vec![
                ("world/ranks", line.ranks as f64),
                ("world/nodes", line.nodes as f64),
            ];
            (line.step, values, Vec::new(), None)
        }
        // A text, see `changes`.
        Metric::Resume(line) => (line.step, Vec::new(), Vec::new(), None),
    };
    let values = values.into_iter().map(|(tag, value)| (tag.into(), value));
    let norms = norms.into_iter().flatten();
    let norms = norms.map(|(path, norm)| (format!("gradient_norm/{path}").into(), *norm));
    let own = own.into_iter().map(|(tag, value)| (tag.into(), value));
    (step, values.chain(own).chain(norms).collect())
}
