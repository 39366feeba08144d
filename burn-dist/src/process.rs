//! Whether other processes of this machine have ended.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};

/// A process to watch.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    /// A pidfd, which is readable once the process has ended. Unlike `pid`, it never refers to
    /// another process. `None` before Linux 5.3.
    handle: Option<OwnedFd>,
}

impl Process {
    pub fn new(pid: Pid) -> Self {
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok();
        Self { pid, handle }
    }

    pub fn handle(&self) -> Option<&OwnedFd> {
        self.handle.as_ref()
    }

    /// Whether it has ended. A zombie has.
    pub fn has_ended(&self) -> bool {
        let Some(handle) = &self.handle else {
            // A process of another user gives EPERM.
            return test_kill_process(self.pid) == Err(rustix::io::Errno::SRCH);
        };
        let mut events = [PollFd::new(handle, PollFlags::IN)];
        poll(&mut events, Some(&Default::default())).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_nobody_has_waited_for_has_ended() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::new(Pid::from_child(&child));
        assert!(!process.has_ended());
        drop(child.stdin.take());
        let mut looks = 0;
        while !process.has_ended() {
            looks += 1;
            assert!(looks < 10_000, "it has not ended");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().unwrap();
        assert!(process.has_ended());
        assert!(!Process::new(rustix::process::getpid()).has_ended());
    }
}
