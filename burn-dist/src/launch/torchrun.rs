//! The variables of `torchrun`, which many other launchers set too: RANK, LOCAL_RANK, WORLD_SIZE,
//! LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and GROUP_RANK or NODE_RANK.
//!
//! torchrun itself (`torch/distributed/elastic/agent/server/local_elastic_agent.py`) also sets
//! TORCHELASTIC_RUN_ID and TORCHELASTIC_USE_AGENT_STORE. If the latter is `True`, torchrun listens
//! at MASTER_PORT for PyTorch's ranks; ours meet at ports derived from that port and the id.
//! torchrun provides no secret. Unless the user does, it is derived from the user's key, as under
//! Slurm. (TORCHELASTIC_RESTART_COUNT differs between nodes, so it is not used.)

use super::environment::secret_from;
use super::variables::{LAUNCH, MASTER_ADDR, MASTER_PORT, optional, port, required};
use super::{Vars, WorldError};
use super::{ports, user_key};
use crate::wire::Secret;
use crate::world::{FromLauncher, Launch, Master, Topology, World};

pub(super) const RANK: &str = "RANK";
const LOCAL_RANK: &str = "LOCAL_RANK";
pub(super) const WORLD_SIZE: &str = "WORLD_SIZE";
const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";
const GROUP_RANK: &str = "GROUP_RANK";
const NODE_RANK: &str = "NODE_RANK";
const GROUP_WORLD_SIZE: &str = "GROUP_WORLD_SIZE";
pub(super) const RUN_ID: &str = "TORCHELASTIC_RUN_ID";
const USE_AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";

/// Whether any of the three rank variables is set. A forgotten one is then an error instead of a
/// world of its own for every rank.
pub(crate) fn detected(vars: Vars) -> bool {
    variables(vars).next().is_some()
}

/// The rank variables that are set.
pub(super) fn variables(vars: Vars) -> impl Iterator<Item = &'static str> {
    let is_set = move |name: &&str| vars(name).is_some();
    [RANK, LOCAL_RANK, WORLD_SIZE].into_iter().filter(is_set)
}

/// Whether all variables of a rank are set.
pub(super) fn are_complete(vars: Vars) -> bool {
    let names = [RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT];
    names
        .iter()
        .all(|name| vars(name).is_some_and(|value| !value.is_empty()))
}

/// Whether torchrun itself set them, as it does for the processes that it starts, and not a script.
pub(super) fn is_parent(vars: Vars) -> bool {
    vars(RUN_ID).is_some() && detected(vars)
}

/// Identifies a run of torchrun among others on the same host.
fn run(vars: Vars) -> String {
    let [run, port] = [RUN_ID, MASTER_PORT].map(|name| vars(name).unwrap_or_default());
    format!("torchrun {run}, port {port}")
}

/// Reads the variables. `launch` says who set them.
pub(crate) fn world(vars: Vars, launch: Launch) -> Result<World, WorldError> {
    let because = if vars(RANK).is_some() {
        RANK
    } else if vars(WORLD_SIZE).is_some() {
        WORLD_SIZE
    } else if vars(LOCAL_RANK).is_some() {
        LOCAL_RANK
    } else {
        LAUNCH
    };
    let size = required(vars, WORLD_SIZE, because, "the number of ranks")?;
    let rank = required(vars, RANK, because, "the rank, from 0")?;
    let local_rank = required(vars, LOCAL_RANK, because, "the local rank, from 0")?;
    // Checked first: a wrong size explains other errors.
    if size == 0 {
        return Err(WorldError::EmptyWorld);
    }
    let (mut topology, reason) = topology(vars, rank, size, local_rank)?;
    // Nodes of an agent's world may have different numbers of ranks.
    if launch == Launch::Agent
        && let Some(nodes) = optional(vars, GROUP_WORLD_SIZE)?
    {
        topology.nodes = nodes;
    }
    let world = World {
        rank,
        size,
        topology,
        launch,
        master: None,
        secret: secret_from(vars)?,
        reason,
        from_launcher: FromLauncher {
            assumes_local_size: optional(vars, LOCAL_WORLD_SIZE)?.is_none(),
            ..FromLauncher::default()
        },
    };
    if size == 1 {
        return world.checked();
    }
    // Our own launcher may itself run under torchrun.
    let by_torchrun = launch == Launch::Torchrun && is_parent(vars);
    let secret = match world.secret {
        None if by_torchrun => {
            Some(user_key::load(vars).map_err(|source| WorldError::Key { source })?)
        }
        given => given,
    };
    // The secret of our own launcher is already unique to the run.
    let secret = match launch {
        Launch::Local | Launch::Agent => secret,
        _ => secret.map(|secret| secret.derive(run(vars).as_bytes())),
    };
    let master = Some(master(vars, secret.as_ref().filter(|_| by_torchrun))?);
    let world = World {
        master,
        secret,
        ..world
    };
    world.checked()
}

/// Address of the store. `secret` is that of a run of torchrun, which may use MASTER_PORT itself.
fn master(vars: Vars, secret: Option<&Secret>) -> Result<Master, WorldError> {
    let missing = |name, meaning| WorldError::Missing {
        name,
        because: WORLD_SIZE,
        meaning,
    };
    let host = vars(MASTER_ADDR)
        .filter(|host| !host.is_empty())
        .ok_or(missing(MASTER_ADDR, "name or address of rank 0's host"))?;
    let port = port(vars)?.ok_or(missing(
        MASTER_PORT,
        "a free port on that host, for example 29500",
    ))?;
    let is_taken = vars(USE_AGENT_STORE).is_some_and(|value| value == "True");
    Ok(match secret.filter(|_| is_taken) {
        Some(secret) => ports::master(host, secret, &run(vars)),
        None => Master::new(host, port),
    })
}

/// Place of the rank, and the variables that it comes from.
fn topology(
    vars: Vars,
    rank: usize,
    size: usize,
    local_rank: usize,
) -> Result<(Topology, String), WorldError> {
    let Some(local_size) = optional(vars, LOCAL_WORLD_SIZE)? else {
        let topology = Topology {
            local_rank,
            local_size: size,
            node: 0,
            nodes: 1,
        };
        let reason = "LOCAL_WORLD_SIZE is not set, assuming one node";
        return Ok((topology, reason.into()));
    };
    if local_size == 0 {
        return Err(WorldError::LocalSizeOutOfRange { local_size, size });
    }
    let nodes = size.div_ceil(local_size);
    let (node, reason) = match (optional(vars, GROUP_RANK)?, optional(vars, NODE_RANK)?) {
        (Some(node), _) => (node, "node from GROUP_RANK"),
        (None, Some(node)) => (node, "node from NODE_RANK"),
        // Only a guess, because ranks may be placed in any order: the group asks the ranks later.
        (None, None) => (
            (rank / local_size).min(nodes.saturating_sub(1)),
            "node from RANK and LOCAL_WORLD_SIZE",
        ),
    };
    // If nodes have different sizes, the size of this one does not give the number of nodes.
    let nodes = if size.is_multiple_of(local_size) {
        nodes
    } else {
        nodes.max(node.saturating_add(1))
    };
    let topology = Topology {
        local_rank,
        local_size,
        node,
        nodes,
    };
    Ok((topology, reason.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const GOOD: [(&str, &str); 8] = [
        ("RANK", "5"),
        ("LOCAL_RANK", "1"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("MASTER_ADDR", "node0"),
        ("MASTER_PORT", "29500"),
        ("GROUP_RANK", "1"),
        ("BURN_DIST_SECRET", "0123456789abcdef"),
    ];

    /// `GOOD` with changes; an empty change removes the variable.
    fn parse(changes: &[(&'static str, &'static str)]) -> Result<World, WorldError> {
        let mut map = BTreeMap::from(GOOD);
        for (name, value) in changes {
            match value.is_empty() {
                true => map.remove(name),
                false => map.insert(name, value),
            };
        }
        World::from_vars(&|name| map.get(name).map(|value| value.to_string()))
    }

    #[test]
    fn full_environment() {
        let world = parse(&[]).unwrap();
        assert_eq!((world.rank(), world.size()), (5, 8));
        assert_eq!((world.local_rank(), world.local_size()), (1, 4));
        assert!(!world.assumes_local_size());
        assert_eq!((world.node(), world.nodes()), (1, 2));
        assert_eq!(world.launch(), Launch::Torchrun);
        assert!(!world.hosts_store());
        assert!(
            parse(&[("RANK", "0"), ("GROUP_RANK", "0")])
                .unwrap()
                .hosts_store()
        );
        assert_eq!(
            world.describe(),
            "rank 5 of 8, local rank 1 of 4, node 1 of 2; launch torchrun \
             (node from GROUP_RANK); store at node0:29500"
        );
    }

    #[test]
    fn optional_variables_have_defaults() {
        let world = parse(&[("LOCAL_WORLD_SIZE", ""), ("GROUP_RANK", "")]).unwrap();
        assert_eq!((world.local_size(), world.node(), world.nodes()), (8, 0, 1));
        assert!(world.assumes_local_size());
        let world = parse(&[("GROUP_RANK", "")]).unwrap();
        assert_eq!((world.node(), world.nodes()), (1, 2));
        let world = parse(&[("GROUP_RANK", ""), ("NODE_RANK", "0")]).unwrap();
        assert_eq!((world.node(), world.nodes()), (0, 2));
        // Three ranks on one node and two on another.
        let uneven = [
            ("WORLD_SIZE", "5"),
            ("RANK", "4"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("GROUP_RANK", ""),
        ];
        assert_eq!(parse(&uneven).unwrap().nodes(), 3);
    }

    #[test]
    fn one_rank_needs_neither_store_nor_secret() {
        let world = World::from_vars(&|name| match name {
            "RANK" | "LOCAL_RANK" => Some("0".into()),
            "WORLD_SIZE" => Some("1".into()),
            _ => None,
        });
        assert_eq!(world.unwrap().size(), 1);
    }

    #[test]
    fn each_mistake_has_its_error() {
        type Check = fn(&WorldError) -> bool;
        let cases: [(&[(&'static str, &'static str)], Check); 15] = [
            (&[("WORLD_SIZE", "0")], |e| {
                matches!(e, WorldError::EmptyWorld)
            }),
            (&[("WORLD_SIZE", "100000")], |e| {
                matches!(e, WorldError::WorldTooLarge { size: 100_000 })
            }),
            (&[("RANK", "8")], |e| {
                matches!(e, WorldError::RankOutOfRange { rank: 8, size: 8 })
            }),
            (
                &[("RANK", "one")],
                |e| matches!(e, WorldError::NotANumber { name: "RANK", value } if value == "one"),
            ),
            (&[("RANK", "-1")], |e| {
                matches!(e, WorldError::NotANumber { .. })
            }),
            (&[("WORLD_SIZE", "99999999999999999999999")], |e| {
                matches!(
                    e,
                    WorldError::NotANumber {
                        name: "WORLD_SIZE",
                        ..
                    }
                )
            }),
            (&[("WORLD_SIZE", "")], |e| {
                matches!(
                    e,
                    WorldError::Missing {
                        name: "WORLD_SIZE",
                        because: "RANK",
                        ..
                    }
                )
            }),
            (&[("RANK", "")], |e| {
                matches!(
                    e,
                    WorldError::Missing {
                        name: "RANK",
                        because: "WORLD_SIZE",
                        ..
                    }
                )
            }),
            (&[("LOCAL_RANK", "")], |e| {
                matches!(
                    e,
                    WorldError::Missing {
                        name: "LOCAL_RANK",
                        ..
                    }
                )
            }),
            (&[("MASTER_ADDR", "")], |e| {
                matches!(
                    e,
                    WorldError::Missing {
                        name: "MASTER_ADDR",
                        ..
                    }
                )
            }),
            (&[("MASTER_PORT", "")], |e| {
                matches!(
                    e,
                    WorldError::Missing {
                        name: "MASTER_PORT",
                        ..
                    }
                )
            }),
            (&[("LOCAL_RANK", "4")], |e| {
                matches!(
                    e,
                    WorldError::LocalRankOutOfRange {
                        local_rank: 4,
                        local_size: 4
                    }
                )
            }),
            (&[("LOCAL_WORLD_SIZE", "9")], |e| {
                matches!(
                    e,
                    WorldError::LocalSizeOutOfRange {
                        local_size: 9,
                        size: 8
                    }
                )
            }),
            (&[("GROUP_RANK", "2")], |e| {
                matches!(e, WorldError::NodeOutOfRange { node: 2, nodes: 2 })
            }),
            (&[("BURN_DIST_SECRET", "short")], |e| {
                matches!(
                    e,
                    WorldError::BadSecret {
                        name: "BURN_DIST_SECRET",
                        ..
                    }
                )
            }),
        ];
        for (changes, check) in cases {
            let error = parse(changes).unwrap_err();
            assert!(check(&error), "{changes:?}: {error:?}");
        }
    }

    #[test]
    fn bad_ports_are_named() {
        for port in ["0", "65536", "-1", "http", "1 2"] {
            let error = parse(&[("MASTER_PORT", port)]).unwrap_err();
            assert!(
                matches!(&error, WorldError::BadPort { value } if value == port),
                "{error}"
            );
        }
    }

    #[test]
    fn missing_secret_says_how_to_set_one() {
        let error = parse(&[("BURN_DIST_SECRET", "")]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("BURN_DIST_SECRET=\"$(openssl rand -hex 16)\""),
            "{text}"
        );
    }

    /// Variables that `torchrun --standalone` adds.
    const AGENT: [(&str, &str); 3] = [
        ("TORCHELASTIC_RUN_ID", "7a24"),
        ("TORCHELASTIC_RESTART_COUNT", "0"),
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ];

    fn under_agent(changes: &[(&'static str, &'static str)]) -> World {
        parse(&[&AGENT[..], changes].concat()).unwrap()
    }

    #[test]
    fn the_port_of_torchruns_own_store_is_left_to_it() {
        let master = |changes: &[_]| under_agent(changes).master().unwrap().clone();
        let mine = master(&[]);
        assert_eq!(mine.host, "node0");
        assert!(mine.ports().all(|port| port != 29500));
        assert_eq!(mine, master(&[("RANK", "2"), ("GROUP_RANK", "0")]));
        for other in [("TORCHELASTIC_RUN_ID", "7a25"), ("MASTER_PORT", "29501")] {
            assert_ne!(mine, master(&[other]), "{other:?}");
        }
        // Each node counts its own restarts.
        assert_eq!(mine, master(&[("TORCHELASTIC_RESTART_COUNT", "1")]));
        // Ranks of our launcher, which has its own store.
        let local = master(&[("BURN_DIST_LAUNCH", "local")]);
        assert_eq!(local, Master::new("node0", 29500));
        for own in ["False", ""] {
            let given = master(&[("TORCHELASTIC_USE_AGENT_STORE", own)]);
            assert_eq!(given, Master::new("node0", 29500));
        }
    }

    #[test]
    fn torchruns_ranks_have_a_secret_from_the_users_key() {
        let home = Box::leak(Box::new(tempfile::tempdir().unwrap()));
        let home = home.path().to_str().unwrap();
        let key = |changes: &[_]| {
            let no_secret = [("BURN_DIST_SECRET", ""), ("XDG_CONFIG_HOME", home)];
            let world = under_agent(&[&no_secret[..], changes].concat());
            *world.secret().unwrap().key()
        };
        assert_eq!(key(&[]), key(&[("RANK", "2")]));
        assert_ne!(key(&[]), key(&[("TORCHELASTIC_RUN_ID", "7a25")]));
        std::fs::remove_dir_all(home).unwrap();
    }

    #[test]
    fn a_secret_that_runs_share_gives_each_keys_and_ports_of_its_own() {
        let world = |changes: &[_]| {
            let world = under_agent(changes);
            let ports: Vec<u16> = world.master().unwrap().ports().collect();
            (*world.secret().unwrap().key(), ports)
        };
        let mine = world(&[]);
        assert_eq!(mine, world(&[("RANK", "2"), ("GROUP_RANK", "0")]));
        for other in [
            ("TORCHELASTIC_RUN_ID", "7a25"),
            ("MASTER_PORT", "29501"),
            // Without the secret nobody can predict the ports.
            ("BURN_DIST_SECRET", "0123456789abcdeg"),
        ] {
            let other = world(&[other]);
            assert!(other.0 != mine.0 && other.1 != mine.1);
        }
        // Ranks of our own launcher get only the secret of their run.
        let local = parse(&[("BURN_DIST_LAUNCH", "local")]).unwrap();
        let given = Secret::from_text("0123456789abcdef").unwrap();
        assert_eq!(local.secret().unwrap().key(), given.key());
    }

    #[test]
    fn secret_file_is_read() {
        let error = parse(&[
            ("BURN_DIST_SECRET", ""),
            ("BURN_DIST_SECRET_FILE", "/nowhere"),
        ]);
        let text = error.unwrap_err().to_string();
        assert!(
            text.contains("BURN_DIST_SECRET_FILE") && text.contains("/nowhere"),
            "{text}"
        );
    }
}
