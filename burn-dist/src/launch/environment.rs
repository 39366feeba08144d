//! Reads a [`World`] from the environment.

use std::net::SocketAddr;
use std::path::Path;

use super::Vars;
use super::decide::{decide, decide_to_launch};
use super::devices::visible;
use super::error::WorldError;
use super::mpi;
use super::variables::{SECRET, SECRET_FILE};
use crate::wire::Secret;
use crate::world::{FromLauncher, Launch, MAX_WORLD_SIZE, Master, Topology, World};

impl World {
    /// Reads the world from this process's environment.
    ///
    /// In this order: `BURN_DIST_LAUNCH`, the variables of MPI launchers, of Slurm's `srun`, of
    /// `torchrun`. Without any of them this process is the only rank. [`World::describe`] says what
    /// was decided.
    ///
    /// If MPI started the ranks and the feature `mpi` is on, this starts MPI and is a collective
    /// call. Call it on the main thread, and keep the world or its group until the end.
    ///
    /// # Errors
    /// Fails if variables contradict each other or one is missing; see [`WorldError`].
    pub fn from_env() -> Result<Self, WorldError> {
        // The parser of a variable reports invalid UTF-8, so it must not count as unset.
        let world = Self::from_vars(&|name| {
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })?;
        match world.launch {
            Launch::Mpi => mpi::asked(world),
            _ => Ok(world),
        }
    }

    /// The world of a process that is asked to start ranks itself, for example with `--nproc`.
    ///
    /// It is [`World::single`] unless a launcher started this process as one of several ranks.
    /// Leftovers of MPI or Slurm in a shell's environment do not count, nor do incomplete variables
    /// of torchrun. [`World::advice`] names them.
    ///
    /// # Errors
    /// As [`World::from_env`].
    pub fn from_env_to_launch() -> Result<Self, WorldError> {
        let world = decide_to_launch(&|name| {
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })?;
        match world.launch {
            Launch::Single => Ok(world),
            _ => Self::from_env(),
        }
    }

    /// Reads the world from `vars` as [`World::from_env`] does, without asking MPI.
    ///
    /// If MPI started the ranks, the world has only what the launcher's variables say.
    ///
    /// # Errors
    /// As [`World::from_env`].
    pub fn from_vars(vars: Vars) -> Result<Self, WorldError> {
        let mut world = decide(vars)?;
        world.from_launcher.devices = visible(vars);
        let is_weak = world.secret.as_ref().is_some_and(Secret::is_weak);
        if is_weak && world.size > 1 && world.from_launcher.advice.is_none() {
            let advice =
                "the run's secret is easy to guess; create one with `openssl rand -hex 16`";
            world.from_launcher.advice = Some(advice.to_owned());
        }
        Ok(world)
    }

    /// The world of rank `rank` of `size` on this machine, with a running store at `store`.
    ///
    /// For programs that start ranks as their own threads or processes.
    ///
    /// # Errors
    /// Fails if `rank` does not exist in a world of that size.
    pub fn local(
        rank: usize,
        size: usize,
        store: SocketAddr,
        secret: Secret,
    ) -> Result<Self, WorldError> {
        let world = Self {
            rank,
            size,
            topology: Topology {
                local_rank: rank,
                local_size: size,
                node: 0,
                nodes: 1,
            },
            launch: Launch::Local,
            master: Some(Master::new(store.ip().to_string(), store.port())),
            secret: Some(secret),
            reason: "set by the program".into(),
            from_launcher: FromLauncher::default(),
        };
        world.checked()
    }

    /// Checks what must hold in every world, whatever launched it.
    pub(super) fn checked(self) -> Result<Self, WorldError> {
        let Self { rank, size, .. } = self;
        let Topology {
            local_rank,
            local_size,
            node,
            nodes,
        } = self.topology;
        if size == 0 {
            return Err(WorldError::EmptyWorld);
        }
        if size > MAX_WORLD_SIZE {
            return Err(WorldError::WorldTooLarge { size });
        }
        if rank >= size {
            return Err(WorldError::RankOutOfRange { rank, size });
        }
        if local_size == 0 || local_size > size {
            return Err(WorldError::LocalSizeOutOfRange { local_size, size });
        }
        if local_rank >= local_size {
            return Err(WorldError::LocalRankOutOfRange {
                local_rank,
                local_size,
            });
        }
        if nodes == 0 || node >= nodes {
            return Err(WorldError::NodeOutOfRange {
                node,
                nodes: nodes.max(1),
            });
        }
        // MPI distributes the secret when a group connects.
        if size > 1 && self.secret.is_none() && self.from_launcher.companion.is_none() {
            return Err(WorldError::NoSecret { size });
        }
        Ok(self)
    }
}

/// The secret from the variables, if they name one.
pub(super) fn secret_from(vars: Vars) -> Result<Option<Secret>, WorldError> {
    let (name, secret) = if let Some(text) = vars(SECRET) {
        (SECRET, Secret::from_text(&text))
    } else if let Some(path) = vars(SECRET_FILE) {
        (SECRET_FILE, Secret::from_file(Path::new(&path)))
    } else {
        return Ok(None);
    };
    secret
        .map(Some)
        .map_err(|source| WorldError::BadSecret { name, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(vars: &[(&str, &str)]) -> Result<World, WorldError> {
        World::from_vars(&|name| {
            let found = vars.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn nothing_set_is_a_single_rank() {
        let world = parse(&[("MASTER_ADDR", "left.over"), ("PATH", "/bin")]).unwrap();
        assert_eq!((world.rank(), world.size()), (0, 1));
        assert_eq!(world.launch(), Launch::Single);
        assert!(world.is_main() && !world.hosts_store());
        assert_eq!(
            world.describe(),
            "rank 0 of 1, local rank 0 of 1, node 0 of 1; launch single \
             (no launcher variables are set)"
        );
    }

    #[test]
    fn launch_can_be_forced() {
        let world = parse(&[("BURN_DIST_LAUNCH", "single"), ("WORLD_SIZE", "4")]).unwrap();
        assert_eq!(world.launch(), Launch::Single);
        let error = parse(&[("BURN_DIST_LAUNCH", "magic")]).unwrap_err();
        assert!(matches!(error, WorldError::UnknownLaunch { value } if value == "magic"));
        let error = parse(&[("BURN_DIST_LAUNCH", "torchrun")]).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("BURN_DIST_LAUNCH is set but WORLD_SIZE is not"),
            "{text}"
        );
    }

    #[test]
    fn local_worlds_are_checked() {
        let secret = Secret::from_text("0123456789abcdef").unwrap();
        let store: SocketAddr = "[::1]:5".parse().unwrap();
        let world = World::local(1, 2, store, secret.clone()).unwrap();
        assert_eq!(world.master().unwrap().to_string(), "[::1]:5");
        let world = World::local(2, 2, store, secret.clone());
        assert!(matches!(
            world,
            Err(WorldError::RankOutOfRange { rank: 2, size: 2 })
        ));
        let world = World::local(0, 0, store, secret);
        assert!(matches!(world, Err(WorldError::EmptyWorld)));
    }

    #[test]
    fn debug_hides_the_secret() {
        let text = "0123456789abcdef";
        let secret = Secret::from_text(text).unwrap();
        let world = World::local(0, 2, "127.0.0.1:5".parse().unwrap(), secret).unwrap();
        assert!(format!("{world:?}").contains("Secret(hidden)"));
    }
}
