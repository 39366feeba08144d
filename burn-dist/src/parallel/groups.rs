//! Parameter groups: optimizer settings for a part of the parameters, chosen by path and shape.
//!
//! A group is an optimizer of its own. So no optimizer has to know of groups, and each computes the
//! same bits as without groups. A group may have groups, which divide its parameters.

use std::fmt;
use std::sync::Arc;

use burn::optim::DynOptimizer;

use super::state::Rebuild;
use super::{ParallelError, ParameterOptimizer, ParameterSpec};
use crate::fused::Fused;

/// Number of paths that an error lists.
const PATHS_SHOWN: usize = 12;

type Select = dyn Fn(&ParameterSpec) -> bool + Send + Sync;

/// Parameters with their own optimizer; see [`ParameterOptimizer::with_group`].
#[derive(Clone)]
pub struct ParameterGroup {
    name: String,
    select: Arc<Select>,
    optimizer: ParameterOptimizer,
    lr_factor: f64,
    may_be_empty: bool,
}

impl ParameterGroup {
    /// Groups the parameters for which `select` returns true; `optimizer` steps them.
    ///
    /// `optimizer` may differ from the main one in its settings or its kind, and may have groups of
    /// its own. `name` appears in error messages.
    pub fn new(
        name: impl Into<String>,
        select: impl Fn(&ParameterSpec) -> bool + Send + Sync + 'static,
        optimizer: impl Into<ParameterOptimizer>,
    ) -> Self {
        Self {
            name: name.into(),
            select: Arc::new(select),
            optimizer: optimizer.into(),
            lr_factor: 1.0,
            may_be_empty: false,
        }
    }

    /// Multiplies the learning rate of this group by `factor` in every step.
    #[must_use]
    pub fn with_lr_factor(mut self, factor: f64) -> Self {
        self.lr_factor = factor;
        self
    }

    /// Allows models without a parameter for this group; by default they are refused.
    ///
    /// Groups within a group ([`ParameterOptimizer::with_group`] on a group's optimizer) may always
    /// be empty.
    #[must_use]
    pub fn or_empty(mut self) -> Self {
        self.may_be_empty = true;
        self
    }

    pub(super) fn clips_each_parameter(&self) -> bool {
        self.optimizer.clips_each_parameter
    }
}

impl fmt::Debug for ParameterGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (lr × {})", self.name, self.lr_factor)
    }
}

/// Returns true for biases, parameters of normalizations, and learned tokens and positions.
///
/// These usually have no weight decay. The test is: one dimension, or a field called `cls_token` or
/// `pos_embed`.
pub fn is_norm_or_bias(parameter: &ParameterSpec) -> bool {
    let field = parameter.path.rsplit('.').next().unwrap_or_default();
    parameter.shape.len() <= 1 || ["cls_token", "pos_embed"].contains(&field)
}

/// Whether `path` matches `pattern`: `*` stands for any characters, `?` for one.
///
/// `*` also matches dots. All other characters stand for themselves.
pub fn path_matches(pattern: &str, path: &str) -> bool {
    let (pattern, path): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), path.chars().collect());
    let (mut at, mut place) = (0, 0);
    // Position to resume at when the last `*` must take one more character.
    let mut retry = None;
    while let Some(character) = path.get(place) {
        match pattern.get(at) {
            Some('*') => {
                retry = Some((at, place));
                at += 1;
            }
            Some(expected) if *expected == '?' || expected == character => {
                at += 1;
                place += 1;
            }
            _ => {
                let Some((star, from)) = retry else {
                    return false;
                };
                retry = Some((star, from + 1));
                at = star + 1;
                place = from + 1;
            }
        }
    }
    pattern.iter().skip(at).all(|rest| *rest == '*')
}

/// The way in which one parameter is stepped.
#[derive(Clone)]
pub(super) struct StepRule {
    pub(super) optimizer: Arc<dyn DynOptimizer>,
    /// The same step in one pass over host memory, if possible.
    pub(super) fused: Option<Fused>,
    /// Rebuilds the optimizer's state in double precision.
    pub(super) in_double: Option<Rebuild>,
    /// The parameter's shape, if the optimizer needs the whole parameter.
    pub(super) whole: Option<Vec<usize>>,
    pub(super) lr_factor: f64,
}

impl ParameterOptimizer {
    /// The optimizer of this parameter, and its learning-rate factor.
    fn of(&self, spec: &ParameterSpec) -> (&Self, f64) {
        match self.groups.iter().find(|group| (group.select)(spec)) {
            Some(group) => {
                let (optimizer, factor) = group.optimizer.of(spec);
                (optimizer, factor * group.lr_factor)
            }
            None => (self, 1.0),
        }
    }
}

/// Describes what steps each parameter; ranks with equal optimizers get equal descriptions.
pub(super) fn describe(
    optimizer: &ParameterOptimizer,
    parameters: &[ParameterSpec],
) -> Vec<(String, f64)> {
    let described = |spec: &ParameterSpec| {
        let (optimizer, lr_factor) = optimizer.of(spec);
        (optimizer.settings.to_string(), lr_factor)
    };
    parameters.iter().map(described).collect()
}

/// The step rule of each parameter: that of the first group that selects it, else the main one.
pub(super) fn choose(
    optimizer: &ParameterOptimizer,
    parameters: &[ParameterSpec],
) -> Result<Vec<StepRule>, ParallelError> {
    for group in &optimizer.groups {
        if !group.lr_factor.is_finite() {
            return Err(ParallelError::Option {
                option: "the lr_factor of a parameter group",
                value: format!("{} ({})", group.lr_factor, group.name),
                expected: "finite",
            });
        }
        if !group.may_be_empty && !parameters.iter().any(|spec| (group.select)(spec)) {
            let paths = parameters.iter().map(|spec| spec.path.clone());
            let mut paths: Vec<String> = paths.take(PATHS_SHOWN).collect();
            if parameters.len() > PATHS_SHOWN {
                paths.push("…".to_owned());
            }
            return Err(ParallelError::EmptyGroup {
                group: group.name.clone(),
                paths,
            });
        }
    }
    let choice = |spec: &ParameterSpec| {
        let (optimizer, lr_factor) = optimizer.of(spec);
        if optimizer.matrices_only && spec.shape.len() != 2 {
            return Err(ParallelError::NotAMatrix {
                path: spec.path.clone(),
                shape: spec.shape.clone(),
            });
        }
        Ok(StepRule {
            optimizer: optimizer.optimizer.clone(),
            fused: optimizer.fused,
            in_double: optimizer.in_double,
            whole: (!optimizer.element_wise).then(|| spec.shape.clone()),
            lr_factor,
        })
    };
    parameters.iter().map(choice).collect()
}

#[cfg(test)]
mod tests {
    use burn::optim::SgdConfig;
    use proptest::prelude::*;

    use super::*;

    fn spec(path: &str, shape: &[usize]) -> ParameterSpec {
        ParameterSpec {
            path: path.to_owned(),
            shape: shape.to_vec(),
            dtype: crate::DType::F32,
        }
    }

    #[test]
    fn patterns_match_whole_paths() {
        for (pattern, path, matches) in [
            ("head.*", "head.weight", true),
            ("head.*", "overhead.weight", false),
            ("*.bias", "blocks.0.mlp.fc1.bias", true),
            ("*.bias", "blocks.0.bias.weight", false),
            ("blocks.?.*", "blocks.3.attn", true),
            ("blocks.?.*", "blocks.13.attn", false),
            ("*attn*weight", "blocks.0.attn.qkv.weight", true),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a**b", "ab", true),
        ] {
            assert_eq!(path_matches(pattern, path), matches, "{pattern} {path}");
        }
    }

    #[test]
    fn biases_norms_and_tokens_are_known_by_shape_and_name() {
        assert!(is_norm_or_bias(&spec("fc.bias", &[10])));
        assert!(is_norm_or_bias(&spec("bn.weight", &[10])));
        assert!(is_norm_or_bias(&spec("vit.cls_token", &[1, 1, 8])));
        assert!(!is_norm_or_bias(&spec("fc.weight", &[10, 4])));
    }

    #[test]
    fn the_first_group_that_selects_a_parameter_takes_it() {
        let group = |name: &'static str, factor| {
            let select = move |spec: &ParameterSpec| path_matches(name, &spec.path);
            ParameterGroup::new(name, select, SgdConfig::new()).with_lr_factor(factor)
        };
        let optimizer = ParameterOptimizer::from(SgdConfig::new())
            .with_group(group("head.*", 0.1))
            .with_group(group("*.bias", 0.5));
        let parameters = [
            spec("body.weight", &[2, 2]),
            spec("body.bias", &[2]),
            spec("head.bias", &[2]),
        ];
        let choices = choose(&optimizer, &parameters).unwrap();
        let factors: Vec<f64> = choices.iter().map(|choice| choice.lr_factor).collect();
        assert_eq!(factors, [1.0, 0.5, 0.1]);

        let optimizer = optimizer.with_group(group("tail.*", 2.0));
        let error = choose(&optimizer, &parameters).err().unwrap().to_string();
        assert!(
            error.contains("`tail.*`") && error.contains("body.bias"),
            "{error}"
        );
        let nested = group("*.weight", 2.0);
        let inner = ParameterOptimizer::from(SgdConfig::new()).with_group(group("body.*", 0.25));
        let nested = ParameterGroup {
            optimizer: inner,
            ..nested
        };
        let optimizer = ParameterOptimizer::from(SgdConfig::new()).with_group(nested);
        let choices = choose(&optimizer, &parameters).unwrap();
        assert_eq!(choices[0].lr_factor, 0.5);
        assert_eq!(choices[1].lr_factor, 1.0);

        let many: Vec<_> = (0..99)
            .map(|i| spec(&format!("head.{i}.bias"), &[1]))
            .collect();
        let error = choose(&optimizer, &many).err().unwrap().to_string();
        assert!(error.len() < 400 && error.contains('…'), "{error}");
        let optional =
            ParameterOptimizer::from(SgdConfig::new()).with_group(group("x", 1.0).or_empty());
        assert!(choose(&optional, &parameters).is_ok());
    }

    proptest! {
        /// Compares with the recursive definition.
        #[test]
        fn patterns_mean_what_they_say(pattern in "[ab*?]{0,8}", path in "[ab]{0,10}") {
            fn matches(pattern: &[u8], path: &[u8]) -> bool {
                match (pattern.split_first(), path.split_first()) {
                    (None, None) => true,
                    (None, Some(_)) => false,
                    (Some((b'*', rest)), None) => matches(rest, path),
                    (Some((b'*', rest)), Some((_, after))) => {
                        matches(rest, path) || matches(pattern, after)
                    }
                    (Some(_), None) => false,
                    (Some((head, rest)), Some((first, after))) => {
                        (*head == b'?' || head == first) && matches(rest, after)
                    }
                }
            }
            let expected = matches(pattern.as_bytes(), path.as_bytes());
            prop_assert_eq!(path_matches(&pattern, &path), expected);
        }
    }
}
