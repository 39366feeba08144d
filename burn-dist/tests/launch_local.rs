//! The local launcher with ranks that fail, and with ranks that do not.

mod world_support;

use burn_dist::launch::LocalLauncher;
use burn_dist::rendezvous::Store;
use burn_dist::world::{Launch, World};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, setrlimit, test_kill_process};
use std::ffi::OsStr;
use std::process::{Command, Stdio, exit};
use std::thread::sleep;
use std::time::{Duration, Instant};
use world_support::*;

/// Not a test. The tests below start this executable to run it: first as the launcher, then as its
/// ranks.
#[test]
fn parts() {
    match (part(), World::from_env()) {
        (None, _) => {}
        (Some(part), Ok(world)) if world.launch() == Launch::Local => rank(&part, &world),
        (Some(part), _) => launcher(&part),
    }
}

fn launcher(part: &str) {
    let nproc = match part {
        "ends in turn" => 2,
        "few files" | "too few files" => MANY,
        _ => 3,
    };
    match part {
        "few files" => limit_files(MANY as u64, None),
        "too few files" => limit_files(MANY as u64, Some(4 * MANY as u64)),
        _ => {}
    }
    let launcher = LocalLauncher::new(nproc).args(PARTS);
    let launcher = match part {
        "slow" => launcher,
        "direct" => launcher.direct_output(true),
        _ => launcher.stop_grace(Duration::from_secs(2)),
    };
    let outcome = launcher.run().unwrap_or_else(|error| {
        eprintln!("error: {error}");
        exit(2)
    });
    eprintln!("outcome: {outcome}");
    if let Some(failure) = outcome.failure() {
        eprintln!("last words: {:?}", failure.last_words());
    }
    exit(outcome.exit_code().into());
}

/// More ranks than the launcher of the tests below may open files at first.
const MANY: usize = 24;

/// Sets this process's soft and hard limits on open files.
fn limit_files(current: u64, maximum: Option<u64>) {
    let limit = Rlimit {
        current: Some(current),
        maximum: maximum.or(getrlimit(Resource::Nofile).maximum),
    };
    setrlimit(Resource::Nofile, limit).unwrap();
}

fn rank(part: &str, world: &World) {
    let me = world.rank();
    let store = Store::connect(world, LIMIT).unwrap();
    store.all_gather("start", &[]).unwrap();
    println!("rank {me} has pid {}", std::process::id());
    store.all_gather("all have said so", &[]).unwrap();
    match (part, me) {
        ("all is well", _) => {
            println!("threads {}", std::env::var("RAYON_NUM_THREADS").unwrap());
            println!("{}", world.describe());
        }
        ("ends in turn", 1) => sleep(Duration::from_millis(1500)),
        ("ends in turn", _) => {}
        ("code 2", 1) => exit(2),
        ("stops early", 0) => {
            sleep(Duration::from_millis(1500));
            exit(75);
        }
        ("stops early", _) => exit(75),
        ("aborts", 1) => {
            store.abort("the loss is not finite");
            // The others notice the abort and end sooner.
            sleep(Duration::from_millis(300));
            eprintln!("my last words");
            exit(1);
        }
        // Like a rank that has waited for it until the timeout.
        ("blames", 1) => {
            store.abort_because_of(Some(2), "rank 1 waited 3 s for rank 2");
            exit(1);
        }
        ("blames", 2) => sleep(LIMIT),
        ("returns an error", 1) => {
            // Like a `main` that returns an error: all its values are dropped.
            drop(store);
            eprintln!("my last words");
            exit(1);
        }
        ("few files", _) => {}
        ("much output", _) => print!("{}", "a line\n".repeat(8_000)),
        ("leaves a child", 1) => {
            let child = std::process::Command::new("sleep").arg("60").spawn();
            println!("child has id {}", child.unwrap().id());
        }
        ("leaves a child", _) => {}
        // As if Ctrl-C had reached the launcher last.
        ("interrupted first", 0) => {
            sleep(Duration::from_millis(100));
            let launcher = rustix::process::getppid().unwrap();
            rustix::process::kill_process(launcher, Signal::INT).unwrap();
            exit(130);
        }
        ("interrupted first", _) | ("code 130", 2) => exit(130),
        ("killed", 2) => kill(std::process::id(), Signal::KILL),
        ("direct", 0) => {
            // The lines above come through the launcher, and would mix with this one.
            sleep(Duration::from_millis(300));
            println!("{}", "x".repeat(100_000));
        }
        ("direct", _) => {}
        ("endless line", 1) => print!("{}", "x".repeat(100_000)),
        ("endless line", _) => {}
        ("deaf" | "slow", _) => {
            let signals = [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM];
            let mut signals = signal_hook::iterator::Signals::new(signals).unwrap();
            println!("rank {me} listens");
            for signal in signals.forever() {
                println!("rank {me} ignores signal {signal}");
            }
        }
        ("asked", _) => {
            let mut signals =
                signal_hook::iterator::Signals::new([signal_hook::consts::SIGUSR1]).unwrap();
            println!("rank {me} listens");
            signals.forever().next();
            println!("rank {me} was asked");
        }
        _ => wait_for_fault(&store, me),
    }
}

/// Waits until this rank is told of the failure of another.
fn wait_for_fault(store: &Store, me: usize) {
    let fault = eventually(LIMIT, "a fault", || store.faults().get());
    eprintln!("rank {me} sees: {fault}");
    exit(1);
}

fn kill(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
    sleep(LIMIT);
}

/// A launcher that plays `part`, with its ranks' process ids in rank order.
struct Run {
    process: Process,
    pids: Vec<Pid>,
}

impl Run {
    fn start(part: &str) -> Self {
        Self::of(play(part), part)
    }

    fn of(mut command: Command, part: &str) -> Self {
        // Variables that torchrun leaves to processes of its ranks must not be taken for the
        // launcher's.
        command.env("TORCHELASTIC_RUN_ID", "none");
        command.env("TORCHELASTIC_USE_AGENT_STORE", "True");
        let mut process = Process::start(command);
        let mut pids: Vec<_> = (0..if part == "ends in turn" { 2 } else { 3 })
            .map(|_| {
                let line = process.line("has pid");
                // The end of "rank 1 has pid 1234", whatever precedes it.
                let words: Vec<_> = line.rsplit(' ').collect();
                let pid: i32 = words[0].parse().unwrap();
                (words[3].to_owned(), Pid::from_raw(pid).unwrap())
            })
            .collect();
        pids.sort_by(|a, b| a.0.cmp(&b.0));
        let pids = pids.into_iter().map(|(_, pid)| pid).collect();
        Self { process, pids }
    }

    /// Waits for the launcher's end and checks that no rank is left. Returns its exit code and its
    /// output.
    fn end(self) -> (Option<i32>, String) {
        let (status, output) = self.process.end();
        for pid in self.pids {
            assert!(
                test_kill_process(pid).is_err(),
                "process {pid:?} is left: {output}"
            );
        }
        (status.code(), output)
    }
}

/// Returns the command on a host whose loopback interface only has ::1; an error if the system does
/// not let us create one.
fn without_ipv4_loopback(command: &Command) -> Result<Command, String> {
    let host = |program: &OsStr| {
        let mut host = Command::new("unshare");
        let script = "ip link set lo up && ip addr del 127.0.0.1/8 dev lo && \
                      ip -6 addr show lo | grep -q ::1 && exec \"$0\" \"$@\"";
        host.args(["--net", "--map-root-user", "sh", "-c", script]);
        host.arg(program);
        host
    };
    let probe = host(OsStr::new("true")).output();
    let probe = probe.map_err(|error| error.to_string())?;
    if !probe.status.success() {
        return Err(String::from_utf8_lossy(&probe.stderr).into_owned());
    }
    let mut host = host(command.get_program());
    host.args(command.get_args()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => host.env(name, value),
            None => host.env_remove(name),
        };
    }
    Ok(host)
}

#[test]
fn a_host_without_ipv4_loopback_runs_ranks() {
    limited(|| match without_ipv4_loopback(&play("all is well")) {
        Err(reason) => println!("SKIPPED: no host without IPv4 loopback: {reason}"),
        Ok(command) => {
            let (code, output) = Run::of(command, "all is well").end();
            assert_eq!(code, Some(0), "{output}");
            assert!(output.contains("store at [::1]:"), "{output}");
        }
    });
}

#[test]
fn all_is_well() {
    limited(|| {
        let (code, output) = Run::start("all is well").end();
        assert_eq!(code, Some(0), "{output}");
        assert!(output.contains("outcome: all ranks finished"), "{output}");
        // Lines of rank 0 stay unchanged, those of the others start with the rank.
        assert!(
            output.contains("\nrank 0 of 3, local rank 0 of 3"),
            "{output}"
        );
        assert!(
            output.contains("[rank 1] rank 1 of 3, local rank 1 of 3"),
            "{output}"
        );
        let share = std::thread::available_parallelism().unwrap().get() / 3;
        if std::env::var_os("RAYON_NUM_THREADS").is_none() {
            assert!(
                output.contains(&format!("[rank 2] threads {}", share.max(1))),
                "{output}"
            );
        }
    });
}

#[test]
fn who_says_good_bye_and_ends_with_an_error_is_named() {
    limited(|| {
        let begin = Instant::now();
        let (code, output) = Run::start("returns an error").end();
        assert_eq!(code, Some(1), "{output}");
        assert!(
            output.contains("outcome: rank 1 exited with code 1"),
            "{output}"
        );
        assert!(output.contains("last words: [\"my last words"), "{output}");
        for other in [0, 2] {
            let told = format!("rank {other} sees: rank 1 ");
            assert!(output.contains(&told), "{output}");
        }
        // No rank waits until the launcher ends it.
        assert!(begin.elapsed() < LIMIT / 2, "{output}");
    });
}

#[test]
fn ranks_may_end_one_after_the_other() {
    limited(|| {
        let start = Instant::now();
        let (code, output) = Run::start("ends in turn").end();
        assert_eq!(code, Some(0), "{output}");
        assert!(start.elapsed() > Duration::from_millis(1400));
    });
}

#[test]
fn the_code_of_the_failing_rank_is_kept() {
    limited(|| {
        let (code, output) = Run::start("code 2").end();
        assert_eq!(code, Some(2), "{output}");
        assert!(
            output.contains("outcome: rank 1 exited with code 2"),
            "{output}"
        );
        // The others had the time to report their own view.
        assert!(output.contains("rank 0 sees: rank 1 failed"), "{output}");
        assert!(
            output.contains("[rank 2] rank 2 sees: rank 1 failed"),
            "{output}"
        );
    });
}

#[test]
fn ranks_that_stop_early_are_not_hurried() {
    limited(|| {
        let (code, output) = Run::start("stops early").end();
        assert_eq!(code, Some(75), "{output}");
    });
}

#[test]
fn who_aborted_is_named_although_others_end_sooner() {
    limited(|| {
        let (code, output) = Run::start("aborts").end();
        assert_eq!(code, Some(1), "{output}");
        let named = "outcome: rank 1 exited with code 1: the loss is not finite";
        assert!(output.contains(named), "{output}");
        assert!(
            output.contains("last words: [\"my last words\"]"),
            "{output}"
        );
    });
}

#[test]
fn a_rank_that_others_waited_for_in_vain_is_named() {
    limited(|| {
        let (code, output) = Run::start("blames").end();
        assert_eq!(code, Some(1), "{output}");
        let named = "outcome: rank 2 blocked the other ranks: rank 1 waited 3 s for rank 2";
        assert!(output.contains(named), "{output}");
        assert!(!output.contains("memory"), "{output}");
    });
}

#[test]
fn a_line_of_rank_0_stays_whole_if_it_writes_itself() {
    limited(|| {
        let (code, output) = Run::start("direct").end();
        assert_eq!(code, Some(0), "{output}");
        let longest = output.lines().map(str::len).max();
        assert_eq!(longest, Some(100_000));
    });
}

#[test]
fn a_killed_rank_is_named() {
    limited(|| {
        let start = Instant::now();
        let (code, output) = Run::start("killed").end();
        assert_eq!(code, Some(1), "{output}");
        assert!(
            output.contains("outcome: rank 2 was killed by signal 9 (SIGKILL)"),
            "{output}"
        );
        assert!(output.contains("rank 0 sees: rank 2 failed"), "{output}");
        assert!(start.elapsed() < Duration::from_secs(10));
    });
}

#[test]
fn a_rank_killed_from_outside_ends_ranks_that_do_not_listen() {
    limited(|| {
        let mut run = Run::start("deaf");
        for _ in 0..3 {
            run.process.line("listens");
        }
        let start = Instant::now();
        rustix::process::kill_process(run.pids[1], Signal::KILL).unwrap();
        let (code, output) = run.end();
        assert_eq!(code, Some(1), "{output}");
        assert!(
            output.contains("outcome: rank 1 was killed by signal 9 (SIGKILL)"),
            "{output}"
        );
        assert!(output.contains("rank 0 ignores signal 15"), "{output}");
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
    });
}

#[test]
fn a_second_ctrl_c_ends_even_deaf_ranks_within_3_seconds() {
    limited(|| {
        let mut run = Run::start("deaf");
        for _ in 0..3 {
            run.process.line("listens");
        }
        // The ranks have the time that they need for a step and a checkpoint.
        run.process.signal(Signal::INT);
        for _ in 0..3 {
            run.process.line("ignores signal 2");
        }
        // At once, it would count as the same.
        std::thread::sleep(Duration::from_millis(400));
        let start = Instant::now();
        run.process.signal(Signal::INT);
        let (code, output) = run.end();
        assert!(
            start.elapsed() < Duration::from_secs(3),
            "{:?}",
            start.elapsed()
        );
        assert_eq!(code, Some(130), "{output}");
        assert!(output.contains("outcome: stopped by SIGINT"), "{output}");
        assert!(
            output.contains("rank 0 ignores signal 15"),
            "it was not asked first: {output}"
        );
    });
}

#[test]
fn no_rank_is_blamed_that_ctrl_c_ended_before_the_launcher_knew_of_it() {
    limited(|| {
        let (code, output) = Run::start("interrupted first").end();
        assert_eq!(code, Some(130), "{output}");
        assert!(output.contains("outcome: stopped by SIGINT"), "{output}");
        let (code, output) = Run::start("code 130").end();
        assert_eq!(code, Some(130), "{output}");
        let blamed = output.contains("outcome: rank 2 exited with code 130");
        assert!(blamed, "{output}");
    });
}

#[test]
fn sigterm_reaches_the_ranks() {
    limited(|| {
        let run = Run::start("waits");
        run.process.signal(Signal::TERM);
        let (code, output) = run.end();
        assert_eq!(code, Some(143), "{output}");
        assert!(output.contains("outcome: stopped by SIGTERM"), "{output}");
    });
}

#[test]
fn ranks_are_waited_for_until_a_second_sigterm() {
    limited(|| {
        let mut run = Run::start("slow");
        for _ in 0..3 {
            run.process.line("listens");
        }
        run.process.signal(Signal::TERM);
        sleep(Duration::from_secs(4));
        let alive = |pid: &Pid| test_kill_process(*pid).is_ok();
        assert!(run.pids.iter().all(alive));
        let second = Instant::now();
        run.process.signal(Signal::TERM);
        let (code, output) = run.end();
        assert_eq!(code, Some(143), "{output}");
        assert!(
            second.elapsed() < Duration::from_secs(4),
            "{:?}",
            second.elapsed()
        );
    });
}

#[test]
fn sigusr1_reaches_the_ranks_and_ends_nothing() {
    limited(|| {
        let mut run = Run::start("asked");
        for _ in 0..3 {
            run.process.line("listens");
        }
        run.process.signal(Signal::USR1);
        let (code, output) = run.end();
        assert_eq!(code, Some(0), "{output}");
        assert!(output.contains("[rank 2] rank 2 was asked"), "{output}");
    });
}

#[test]
fn endless_lines_are_passed_on_in_pieces() {
    limited(|| {
        let (code, output) = Run::start("endless line").end();
        assert_eq!(code, Some(0), "{output}");
        let pieces = output.lines().filter(|line| line.starts_with("[rank 1] x"));
        assert!(pieces.clone().all(|line| line.len() < 20_000));
        assert_eq!(
            pieces.map(|line| line.matches('x').count()).sum::<usize>(),
            100_000
        );
    });
}

#[test]
fn many_ranks_need_no_higher_limit_of_open_files() {
    limited(|| {
        let output = play("few files").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert_eq!(text.matches("has pid").count(), MANY, "{text}");
    });
}

#[test]
fn a_limit_of_open_files_that_is_too_low_is_named() {
    limited(|| {
        let output = play("too few files").output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        let words = format!("the limit is {}. Raise it", 4 * MANY);
        assert!(text.contains(&words) && text.contains("24 ranks"), "{text}");
    });
}

/// Starts a launcher whose three ranks write more than its own output holds while nobody reads.
fn unread() -> std::process::Child {
    let mut command = play("much output");
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let launcher = command.spawn().unwrap();
    // Until its ranks have ended, and longer than it waits for idle output.
    sleep(Duration::from_millis(3000));
    launcher
}

#[test]
fn who_reads_slowly_gets_all_that_the_ranks_wrote() {
    limited(|| {
        let output = unread().wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.matches("a line\n").count(), 24_000);
    });
}

#[test]
fn a_launcher_whose_output_nobody_reads_can_be_told_to_end() {
    limited(|| {
        let mut launcher = unread();
        assert_eq!(launcher.try_wait().unwrap(), None);
        let pid = Pid::from_child(&launcher);
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
        // On a slow system the ranks may still run, and the signal ends them.
        let code = launcher.wait().unwrap().code();
        assert!(matches!(code, Some(0 | 143)), "{code:?}");
    });
}

#[test]
fn a_launcher_whose_output_nobody_reads_ends_by_itself() {
    limited(|| {
        let mut launcher = unread();
        // Nobody reads: the pipe stays open and full.
        let pipe = launcher.stdout.take();
        assert_eq!(launcher.wait().unwrap().code(), Some(0));
        drop(pipe);
    });
}

#[test]
fn what_a_rank_leaves_behind_holds_nothing_up() {
    limited(|| {
        let start = Instant::now();
        let (code, output) = Run::start("leaves a child").end();
        let (_, child) = output.split_once("child has id ").unwrap();
        let child: i32 = child.split_whitespace().next().unwrap().parse().unwrap();
        rustix::process::kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
        assert_eq!(code, Some(0), "{output}");
        assert!(start.elapsed() < LIMIT / 2, "waited for the child");
    });
}

#[test]
fn ranks_notice_the_death_of_the_launcher() {
    limited(|| {
        let run = Run::start("waits");
        let Run { process, pids } = run;
        process.signal(Signal::KILL);
        // Their output is gone with the launcher; their end shows that they saw the fault.
        for pid in pids {
            eventually(Duration::from_secs(5), "the ranks end", || {
                gone(pid).then_some(())
            });
        }
        drop(process);
    });
}

/// Returns true if a process that is not our child has ended.
fn gone(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    // A zombie has ended too, even before anybody has waited for it.
    stat.map_or(true, |stat| stat.contains(") Z "))
}
