//! Worlds from Slurm's variables, alone and among those of other launchers.

use std::collections::BTreeMap;

use super::*;
use crate::launch::ports::TRIED_PORTS;

/// Variables of `srun -N2 -n4` for task 3, which Slurm may place alone on the second node.
const GOOD: [(&str, &str); 11] = [
    ("SLURM_JOB_ID", "2"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_PROCID", "3"),
    ("SLURM_NTASKS", "4"),
    ("SLURM_LOCALID", "0"),
    ("SLURM_NODEID", "1"),
    ("SLURM_STEP_NUM_TASKS", "4"),
    ("SLURM_STEP_NUM_NODES", "2"),
    ("SLURM_STEP_NODELIST", "node[1-2]"),
    ("SLURM_STEP_TASKS_PER_NODE", "3,1"),
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
fn a_task_knows_its_place() {
    let world = parse(&[]).unwrap();
    assert_eq!(world.launch(), Launch::Slurm);
    assert_eq!((world.rank(), world.size()), (3, 4));
    assert_eq!((world.local_rank(), world.local_size()), (0, 1));
    assert_eq!((world.node(), world.nodes()), (1, 2));
    assert!(!world.hosts_store());
    let first = parse(&[("SLURM_PROCID", "0"), ("SLURM_NODEID", "0")]).unwrap();
    assert!(first.hosts_store());
    assert_eq!(first.local_size(), 3);
    let text = first.describe();
    assert!(text.contains("launch slurm (Slurm step 2.0)"), "{text}");
}

#[test]
fn all_tasks_agree_on_the_store_and_other_steps_on_another() {
    fn master(changes: &[(&'static str, &'static str)]) -> Master {
        parse(changes).unwrap().master().unwrap().clone()
    }
    let mine = master(&[]);
    assert_eq!(mine.host, "node1");
    assert_eq!(mine.ports().count(), TRIED_PORTS);
    assert!(mine.ports().all(|port| (16_384..32_768).contains(&port)));
    assert_eq!(
        mine,
        master(&[("SLURM_PROCID", "0"), ("SLURM_NODEID", "0")])
    );
    for other in [
        ("SLURM_JOB_ID", "3"),
        ("SLURM_STEP_ID", "1"),
        ("SLURM_RESTART_COUNT", "1"),
    ] {
        assert_ne!(mine, master(&[other]), "{other:?}");
    }
    let given = master(&[("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "4000")]);
    assert_eq!(given, Master::new("10.0.0.1", 4000));
}

#[test]
fn the_secret_comes_from_the_users_key() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().to_str().unwrap();
    let world = |job: &'static str| {
        let mut map = BTreeMap::from(GOOD);
        map.remove("BURN_DIST_SECRET");
        map.insert("SLURM_JOB_ID", job);
        let find = |name: &str| match name {
            "HOME" => Some(path.to_owned()),
            _ => map.get(name).map(|value| value.to_string()),
        };
        World::from_vars(&find).unwrap()
    };
    let key = |job| {
        let world = world(job);
        *world.secret().unwrap().key()
    };
    assert_eq!(key("2"), key("2"));
    assert_ne!(key("2"), key("3"));
    let nobody = parse(&[("BURN_DIST_SECRET", "")]).unwrap_err().to_string();
    assert!(
        nobody.contains("HOME") && nobody.contains("BURN_DIST_SECRET="),
        "{nobody}"
    );
}

#[test]
fn tasks_take_a_device_each_however_many_they_are_shown() {
    // The second task of a node with two devices.
    let second = [
        ("SLURM_PROCID", "1"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_NODEID", "0"),
    ];
    let device = |shown: &'static str| {
        let world = parse(&[&second[..], &[("CUDA_VISIBLE_DEVICES", shown)]].concat());
        world.unwrap().describe()
    };
    assert!(device("0,1").ends_with("device 1 of CUDA_VISIBLE_DEVICES=0,1"));
    assert!(device("1").ends_with("device 0 of CUDA_VISIBLE_DEVICES=1"));
    assert!(device("-1").ends_with("no device, CUDA_VISIBLE_DEVICES=-1"));
}

#[test]
fn one_task_is_alone_and_may_start_ranks_itself() {
    let world = parse(&[
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_NUM_TASKS", "1"),
        ("SLURM_STEP_TASKS_PER_NODE", "1"),
    ]);
    let world = world.unwrap();
    assert_eq!((world.launch(), world.size()), (Launch::Single, 1));
    assert!(world.describe().contains("Slurm step 2.0 has one task"));
}

#[test]
fn a_batch_script_is_told_of_srun() {
    let world = parse(&[("SLURM_STEP_ID", ""), ("SLURM_PROCID", "0")]).unwrap();
    assert_eq!(world.launch(), Launch::Single);
    let advice = world.advice();
    assert!(
        advice.is_some_and(|advice| advice.contains("srun")),
        "{advice:?}"
    );
}

/// Variables that Slurm 22.05 sets in the shell of `salloc -N2 -n4` with `use_interactive_step`.
#[test]
fn the_shell_of_an_allocation_is_told_of_srun() {
    let shell = [
        ("SLURM_STEP_ID", "4294967290"),
        ("SLURM_PROCID", "0"),
        ("SLURM_NODEID", "0"),
        ("SLURM_STEP_NUM_TASKS", "1"),
        ("SLURM_STEP_NUM_NODES", "1"),
        ("SLURM_STEP_NODELIST", "node1"),
        ("SLURM_STEP_TASKS_PER_NODE", "1"),
    ];
    let world = parse(&shell).unwrap();
    assert_eq!((world.launch(), world.size()), (Launch::Single, 1));
    let advice = world.advice().unwrap();
    assert!(
        advice.contains("has 4 tasks") && advice.contains("srun"),
        "{advice}"
    );
    let text = world.describe();
    assert!(text.contains("the shell of Slurm job 2"), "{text}");
    // Neither `pam_slurm_adopt` nor a batch script of other versions makes it a task.
    for step in ["4294967291", "4294967292"] {
        let world = parse(&[&shell[..], &[("SLURM_STEP_ID", step)]].concat()).unwrap();
        assert!(world.advice().is_some(), "{step}");
    }
    let forced = parse(&[&shell[..], &[("BURN_DIST_LAUNCH", "slurm")]].concat());
    let text = forced.unwrap_err().to_string();
    assert!(
        text.contains("SLURM_STEP_ID=4294967290 is not one"),
        "{text}"
    );
    let of_one = parse(&[&shell[..], &[("SLURM_NTASKS", "1")]].concat()).unwrap();
    assert_eq!(of_one.advice(), None);
}

/// Variables that Slurm 22.05 sets for a task of `salloc -w node3 -n2 : -w node1 -n1 srun
/// --het-group=…`.
const COMPONENTS: [(&str, &str); 3] = [
    ("SLURM_HET_SIZE", "2"),
    ("SLURM_JOB_NODELIST_HET_GROUP_0", "node3"),
    ("SLURM_JOB_NODELIST_HET_GROUP_1", "node1"),
];

#[test]
fn one_component_of_a_heterogeneous_job_is_a_world() {
    let of_component = |rank, node: &'static str, size: &'static str| {
        let step = [
            ("SLURM_PROCID", rank),
            ("SLURM_LOCALID", rank),
            ("SLURM_NODEID", "0"),
            ("SLURM_NTASKS", size),
            ("SLURM_STEP_NUM_TASKS", size),
            ("SLURM_STEP_NUM_NODES", "1"),
            ("SLURM_STEP_NODELIST", node),
            ("SLURM_STEP_TASKS_PER_NODE", size),
            ("SLURMD_NODENAME", node),
        ];
        parse(&[&COMPONENTS[..], &step].concat()).unwrap()
    };
    for rank in ["0", "1"] {
        let world = of_component(rank, "node3", "2");
        assert_eq!((world.launch(), world.size()), (Launch::Slurm, 2));
        assert_eq!((world.local_size(), world.nodes()), (2, 1));
        assert_eq!(world.master().unwrap().host, "node3");
    }
    assert_eq!(of_component("0", "node1", "1").launch(), Launch::Single);
}

#[test]
fn components_that_are_numbered_jointly_are_one_world() {
    let task = |rank, local, node, name, changes: &[(&'static str, &'static str)]| {
        let step = [
            ("SLURM_PROCID", rank),
            ("SLURM_LOCALID", local),
            ("SLURM_NODEID", node),
            ("SLURMD_NODENAME", name),
            ("SLURM_NTASKS", "3"),
            ("SLURM_STEP_NUM_TASKS", "3"),
            ("SLURM_STEP_NUM_NODES", "2"),
            // Sorted by name, unlike the numbers of the nodes.
            ("SLURM_STEP_NODELIST", "node[1,3]"),
            ("SLURM_STEP_TASKS_PER_NODE", "1,2"),
        ];
        parse(&[&COMPONENTS[..], &step, changes].concat())
    };
    for (rank, local, node, name, local_size) in [
        ("0", "0", "0", "node3", 2),
        ("1", "1", "0", "node3", 2),
        ("2", "0", "1", "node1", 1),
    ] {
        let world = task(rank, local, node, name, &[]).unwrap();
        assert_eq!((world.size(), world.nodes()), (3, 2));
        assert_eq!(world.rank().to_string(), rank);
        assert_eq!(world.node().to_string(), node);
        assert_eq!(world.local_size(), local_size);
        assert_eq!(world.master().unwrap().host, "node3");
        // `srun -n2 … : -n1 …` outside an allocation calls them packs.
        let packs = [
            ("SLURM_JOB_NODELIST_HET_GROUP_0", ""),
            ("SLURM_JOB_NODELIST_HET_GROUP_1", ""),
            ("SLURM_JOB_NODELIST_PACK_GROUP_0", "node3"),
            ("SLURM_JOB_NODELIST_PACK_GROUP_1", "node1"),
        ];
        let same = task(rank, local, node, name, &packs).unwrap();
        assert_eq!(same.master(), world.master());
    }
    // Each component alone, in whatever way.
    for (rank, node, name, changes) in [
        ("0", "0", "node1", &[][..]),
        ("2", "1", "node2", &[]),
        ("2", "1", "node1", &[("SLURM_NTASKS", "1")]),
        (
            "2",
            "1",
            "node1",
            &[("SLURM_JOB_NODELIST_HET_GROUP_0", "node[1,3]")],
        ),
    ] {
        let error = task(rank, "0", node, name, changes).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("not numbered together"), "{text}");
        assert!(text.contains("--het-group=0"), "{text}");
    }
}

#[test]
fn each_mistake_has_its_error() {
    type Check = fn(&WorldError) -> bool;
    let cases: [(&[(&'static str, &'static str)], Check); 9] = [
        (&[("SLURM_STEP_NODELIST", "node[1-")], |e| {
            matches!(e, WorldError::Hosts { .. })
        }),
        (&[("SLURM_STEP_TASKS_PER_NODE", "2(x")], |e| {
            matches!(e, WorldError::TasksPerNode { .. })
        }),
        (&[("SLURM_STEP_TASKS_PER_NODE", "2,1")], |e| {
            matches!(e, WorldError::Contradiction { .. })
        }),
        (&[("SLURM_STEP_NUM_NODES", "3")], |e| {
            matches!(e, WorldError::Contradiction { .. })
        }),
        (&[("SLURM_LOCALID", "1")], |e| {
            matches!(e, WorldError::LocalRankOutOfRange { .. })
        }),
        (&[("SLURM_NODEID", "2")], |e| {
            matches!(e, WorldError::NodeOutOfRange { .. })
        }),
        (&[("SLURM_PROCID", "4")], |e| {
            matches!(e, WorldError::RankOutOfRange { .. })
        }),
        (&[("SLURM_PROCID", "")], |e| {
            matches!(
                e,
                WorldError::Missing {
                    name: "SLURM_PROCID",
                    ..
                }
            )
        }),
        // Tasks counted for each component.
        (&[("SLURM_HET_SIZE", "2"), ("SLURM_NTASKS", "6")], |e| {
            matches!(e, WorldError::Contradiction { .. })
        }),
    ];
    for (changes, check) in cases {
        let error = parse(changes).unwrap_err();
        assert!(check(&error), "{changes:?}: {error:?}");
    }
}

/// Variables of `srun --mpi=pmi2` for the same task.
const PMI: [(&str, &str); 2] = [("PMI_RANK", "3"), ("PMI_SIZE", "4")];

#[test]
fn a_program_without_mpi_needs_none_under_srun() {
    let world = parse(&PMI).unwrap();
    let expected = match cfg!(feature = "mpi") {
        true => Launch::Mpi,
        false => Launch::Slurm,
    };
    assert_eq!(
        (world.launch(), world.rank(), world.size()),
        (expected, 3, 4)
    );
}

#[test]
fn mpirun_inside_a_job_is_believed_and_slurm_is_not() {
    // As on the second node of two: a daemon of mpirun is Slurm's only task there.
    let inside = [
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_NUM_TASKS", "1"),
        ("SLURM_STEP_TASKS_PER_NODE", "1"),
        ("SLURM_STEP_NUM_NODES", "1"),
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ];
    match parse(&inside) {
        Ok(world) if cfg!(feature = "mpi") => {
            assert_eq!(
                (world.launch(), world.rank(), world.size()),
                (Launch::Mpi, 3, 4)
            );
        }
        Err(WorldError::NoMpi { size: 4, .. }) if !cfg!(feature = "mpi") => {}
        other => panic!("{other:?}"),
    }
    // Without MPI the ranks can still be told where to meet.
    let meeting = [
        &inside[..],
        &[("MASTER_ADDR", "node1"), ("MASTER_PORT", "4000")],
    ]
    .concat();
    let world = parse(&meeting).unwrap();
    assert_eq!(
        (world.launch(), world.rank(), world.size()),
        (Launch::Mpi, 3, 4)
    );
    assert!(!world.assumes_local_size());
    // A launcher need not tell the number of ranks on this node.
    let unsaid: Vec<_> = meeting
        .iter()
        .map(|&(name, value)| match name.contains("_LOCAL_") {
            true => (name, ""),
            false => (name, value),
        })
        .collect();
    assert!(parse(&unsaid).unwrap().assumes_local_size());
}

/// `prterun` tells the number of ranks only to its library. A process must not train alone for that
/// reason.
#[test]
fn a_launcher_that_tells_no_size_is_not_passed_over() {
    let vars = |name: &str| (name == "PMIX_RANK").then(|| "3".to_owned());
    // Nor because one of Slurm's tasks started it.
    let within = [
        ("SLURM_NTASKS", "1"),
        ("SLURM_PROCID", "0"),
        ("SLURM_STEP_NUM_TASKS", "1"),
        ("SLURM_STEP_TASKS_PER_NODE", "1"),
        ("SLURM_STEP_NUM_NODES", "1"),
        ("PMIX_NAMESPACE", "prterun-node1-1234@1"),
    ];
    let ranks = ["0", "3"].map(|rank| parse(&[&within[..], &[("PMIX_RANK", rank)]].concat()));
    for world in ranks.into_iter().chain([World::from_vars(&vars)]) {
        match world {
            Ok(world) if cfg!(feature = "mpi") => assert_eq!(world.launch(), Launch::Mpi),
            Err(error @ WorldError::UnknownSize { .. }) if !cfg!(feature = "mpi") => {
                assert!(
                    error.to_string().contains("BURN_DIST_LAUNCH=single"),
                    "{error}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
    // Slurm's own tasks are as many as it says.
    let own = [("PMIX_NAMESPACE", "slurm.pmix.7.0"), ("PMIX_RANK", "3")];
    match parse(&own) {
        Ok(world) => assert_eq!((world.rank(), world.size()), (3, 4)),
        other => panic!("{other:?}"),
    }
    let beyond = parse(&[("PMIX_RANK", "4")]).unwrap_err();
    assert!(matches!(
        beyond,
        WorldError::RankOutOfRange { rank: 4, size: 4 }
    ));
}

#[test]
fn as_many_worlds_as_tasks_are_refused() {
    let singletons = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
    let error = parse(&singletons).unwrap_err().to_string();
    assert!(error.contains("every task would train alone"), "{error}");
}

#[test]
fn torchrun_under_srun_is_the_nearest_launcher() {
    let torchrun = [
        ("RANK", "5"),
        ("LOCAL_RANK", "1"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "node1"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", "none"),
    ];
    let world = parse(&torchrun).unwrap();
    assert_eq!(
        (world.launch(), world.rank(), world.size()),
        (Launch::Torchrun, 5, 8)
    );
    // Without torchrun's own mark they were exported by a user, and contradict Slurm.
    let error = parse(&torchrun[..6]).unwrap_err().to_string();
    assert!(
        error.contains("rank 5 of 8") && error.contains("rank 3 of 4"),
        "{error}"
    );
    let same = [("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0")];
    assert_eq!(parse(&same).unwrap().launch(), Launch::Slurm);
}

#[test]
fn tasks_that_somebody_has_placed_are_looked_for_there() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    let host = |text: &str, distribution: &str| {
        std::fs::write(&file, text).unwrap();
        let mut map = BTreeMap::from(GOOD);
        map.insert("SLURM_DISTRIBUTION", distribution);
        map.insert("SLURM_HOSTFILE", file.to_str().unwrap());
        let world = World::from_vars(&|name| map.get(name).map(|value| value.to_string()));
        world.unwrap().master().unwrap().host.clone()
    };
    assert_eq!(host("node2\nnode1\n", "arbitrary"), "node2");
    assert_eq!(host("# mine\n\n node2*3\nnode1\n", "arbitrary"), "node2");
    assert_eq!(host("node2\nnode1\n", "block"), "node1");
    // As if there were no host file.
    assert_eq!(host("", "arbitrary"), "node1");
    assert_eq!(host("*", "arbitrary"), "node1");
    assert_eq!(host(&"#".repeat(100_000), "arbitrary"), "node1");
}
