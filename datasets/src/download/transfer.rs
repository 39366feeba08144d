//! One request for a file, or for the rest of it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use ureq::http::{HeaderMap, StatusCode, header};
use ureq::{Agent, Body, http::Response};

use super::{Downloader, RemoteFile, verify};
use crate::DatasetError;

/// A longer response is ended and resumed, so that a slow server cannot hold the run for ever.
const LONGEST_RESPONSE: Duration = Duration::from_secs(600);

/// The reason why an attempt failed.
pub(super) struct Failure {
    pub(super) reason: String,
    /// Whether another attempt may succeed.
    pub(super) retry: bool,
    /// Bytes that this attempt added.
    pub(super) gained: u64,
}

impl Failure {
    fn lasting(reason: impl Into<String>) -> Self {
        Failure {
            reason: reason.into(),
            retry: false,
            gained: 0,
        }
    }

    fn passing(reason: impl Into<String>) -> Self {
        Failure {
            retry: true,
            ..Self::lasting(reason)
        }
    }
}

pub(super) fn agent(downloader: &Downloader) -> Agent {
    Agent::config_builder()
        .timeout_resolve(Some(downloader.connect_timeout))
        .timeout_connect(Some(downloader.connect_timeout))
        .timeout_recv_response(Some(downloader.read_timeout))
        .timeout_recv_body(Some(LONGEST_RESPONSE))
        .timeout_per_read(Some(downloader.read_timeout))
        .timeout_per_write(Some(downloader.read_timeout))
        .max_redirects(5)
        .http_status_as_error(false)
        // Offsets for resuming count the bytes as stored.
        .accept_encoding("identity")
        .build()
        .new_agent()
}

/// Requests the rest of `part` from `url` and verifies the whole. The outer error is this
/// machine's, the inner one the server's.
pub(super) fn attempt(
    agent: &Agent,
    url: &str,
    file: &RemoteFile,
    part: &Path,
    progress: bool,
) -> Result<Result<(), Failure>, DatasetError> {
    let have = part_len(part, file)?;
    let mut request = agent.get(url);
    if have > 0 {
        request = request.header(header::RANGE, format!("bytes={have}-"));
    }
    let response = match request.call() {
        Ok(response) => response,
        Err(error) => return Ok(Err(no_answer(&error))),
    };
    let start = match response.status() {
        StatusCode::OK => 0,
        StatusCode::PARTIAL_CONTENT if range_start(response.headers()) == Some(have) => have,
        // Nothing is left to send: the part is complete, or belongs to another file.
        StatusCode::RANGE_NOT_SATISFIABLE if have > 0 => return finish(part, file, true),
        StatusCode::PARTIAL_CONTENT => {
            discard(part)?;
            return Ok(Err(Failure::passing("it sent another part than requested")));
        }
        status => return Ok(Err(refused(status))),
    };
    let received = receive(response, [start, have], file, part, progress)?;
    match received {
        Ok(()) => finish(part, file, start > 0),
        Err(failure) => Ok(Err(failure)),
    }
}

/// Writes the response to `part`, which had `have` bytes, from byte `start` on.
fn receive(
    response: Response<Body>,
    [start, have]: [u64; 2],
    file: &RemoteFile,
    part: &Path,
    progress: bool,
) -> Result<Result<(), Failure>, DatasetError> {
    let most = file.max_stored_len();
    let announced = response.body().content_length();
    let too_long = || {
        Failure::lasting(format!(
            "it sends more than {most} bytes, the maximum for this file"
        ))
    };
    if announced.is_some_and(|len| start.saturating_add(len) > most) {
        return Ok(Err(too_long()));
    }

    let mut output = File::options()
        .create(true)
        .write(true)
        .truncate(false)
        .open(part)
        .map_err(DatasetError::io("create", part))?;
    output
        .set_len(start)
        .and_then(|()| io::Seek::seek(&mut output, io::SeekFrom::Start(start)))
        .map_err(DatasetError::io("write", part))?;

    let bar = bar(file.name, announced.map(|len| start + len), start, progress);
    let mut reader = response.into_body().into_reader();
    let mut buffer = vec![0; 1 << 16];
    let mut len = start;
    loop {
        let read = match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Ok(Err(Failure {
                    // A server that starts over each time must not count as making progress.
                    gained: len.saturating_sub(have),
                    ..Failure::passing(format!("the connection broke after {len} bytes ({error})"))
                }));
            }
        };
        len += read as u64;
        if len > most {
            discard(part)?;
            return Ok(Err(too_long()));
        }
        let chunk = buffer.get(..read).unwrap_or_default();
        output
            .write_all(chunk)
            .map_err(DatasetError::io("write", part))?;
        bar.inc(read as u64);
    }
    bar.finish_and_clear();
    Ok(Ok(()))
}

/// Verifies a part that should be complete. A wrong one is deleted. If it was `resumed`, its
/// beginning may be the cause, and a fresh start may help.
fn finish(
    part: &Path,
    file: &RemoteFile,
    resumed: bool,
) -> Result<Result<(), Failure>, DatasetError> {
    let Err(reason) = verify::check(part, file)? else {
        return Ok(Ok(()));
    };
    discard(part)?;
    Ok(Err(Failure {
        retry: resumed,
        ..Failure::lasting(reason)
    }))
}

/// Bytes that an earlier attempt left. A part longer than the file is deleted.
fn part_len(part: &Path, file: &RemoteFile) -> Result<u64, DatasetError> {
    match fs::metadata(part) {
        Ok(metadata) if metadata.len() <= file.max_stored_len() => Ok(metadata.len()),
        Ok(_) => discard(part).map(|()| 0),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(DatasetError::io("read the size of", part)(error)),
    }
}

fn discard(part: &Path) -> Result<(), DatasetError> {
    match fs::remove_file(part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(DatasetError::io("remove", part)(error))
        }
        _ => Ok(()),
    }
}

/// The first byte of a partial answer (RFC 9110, section 14.4).
fn range_start(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    let (start, _) = range.strip_prefix("bytes ")?.split_once('-')?;
    start.trim().parse().ok()
}

fn refused(status: StatusCode) -> Failure {
    let overloaded = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
    let reason = format!("it answers \"{status}\"");
    if status.is_server_error() || overloaded.contains(&status) {
        Failure::passing(reason)
    } else {
        Failure::lasting(reason)
    }
}

/// A server that cannot be reached now will not be reached in a second: this machine is offline.
fn no_answer(error: &ureq::Error) -> Failure {
    let passing = match error {
        ureq::Error::Io(error) => !matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable
        ),
        ureq::Error::Timeout(phase) => {
            !matches!(phase, ureq::Timeout::Resolve | ureq::Timeout::Connect)
        }
        ureq::Error::Protocol(_) => true,
        _ => false,
    };
    let reason = format!("no answer ({error})");
    if passing {
        Failure::passing(reason)
    } else {
        Failure::lasting(reason)
    }
}

/// A progress bar on standard error; it hides itself without a terminal.
fn bar(name: &'static str, len: Option<u64>, start: u64, wanted: bool) -> ProgressBar {
    if !wanted {
        return ProgressBar::hidden();
    }
    let template = "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = len.map_or_else(ProgressBar::no_length, ProgressBar::new);
    bar.with_style(style)
        .with_message(name)
        .with_position(start)
}
