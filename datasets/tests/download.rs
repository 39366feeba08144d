//! Downloads from a test server with all kinds of server failures.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use datasets::{
    Cifar100, Cifar100Labels, Dataset, DatasetError, Downloader, Form, RemoteFile, Split,
};
use flate2::{Compression, write::GzEncoder};
use sha2::{Digest, Sha256};

/// A request as received by the server.
#[derive(Debug, Clone, PartialEq)]
struct Request {
    path: String,
    /// Start of the requested range in the `Range` header.
    from: Option<usize>,
}

type Answer = dyn Fn(&Request, &mut TcpStream) -> std::io::Result<()> + Send + Sync;

/// An HTTP server on this machine; every connection carries one request. Ends when dropped.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn new(
        answer: impl Fn(&Request, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<Request>>>::default();
        let stopping = Arc::new(AtomicBool::new(false));
        let (log, stop) = (Arc::clone(&seen), Arc::clone(&stopping));
        let answer: Arc<Answer> = Arc::new(answer);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let (mut stream, log, answer) = (stream.unwrap(), log.clone(), answer.clone());
                thread::spawn(move || {
                    stream
                        .set_read_timeout(Some(Duration::from_secs(5)))
                        .unwrap();
                    let Some(request) = read_request(&stream) else {
                        return;
                    };
                    log.lock().unwrap().push(request.clone());
                    // The client may hang up at any time; some tests do.
                    let _ = answer(&request, &mut stream);
                });
            }
        });
        Server {
            address,
            seen,
            stopping,
            thread: Some(thread),
        }
    }

    fn url(&self) -> String {
        format!("http://{}/mnist/", self.address)
    }

    fn starts(&self) -> Vec<Option<usize>> {
        self.seen
            .lock()
            .unwrap()
            .iter()
            .map(|request| request.from)
            .collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let mut from = None;
    for line in lines.take_while(|line| !line.is_empty()) {
        let line = line.to_ascii_lowercase();
        if let Some(range) = line.strip_prefix("range: bytes=") {
            from = range.trim_end_matches('-').parse().ok();
        }
    }
    Some(Request { path, from })
}

fn send(stream: &mut TcpStream, head: &str, announced: usize, body: &[u8]) -> std::io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 {head}\r\nContent-Length: {announced}\r\nConnection: close\r\n\r\n"
    )?;
    stream.write_all(body)
}

/// Answers like a correct server.
fn serve(stored: &[u8], request: &Request, stream: &mut TcpStream) -> std::io::Result<()> {
    match request.from {
        None => send(stream, "200 OK", stored.len(), stored),
        Some(from) if from >= stored.len() => send(stream, "416 Range Not Satisfiable", 0, b""),
        Some(from) => {
            let range = format!("bytes {from}-{}/{}", stored.len() - 1, stored.len());
            let head = format!("206 Partial Content\r\nContent-Range: {range}");
            send(stream, &head, stored.len() - from, &stored[from..])
        }
    }
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// Returns content that hardly compresses.
fn content(len: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn remote(name: &'static str, content: &[u8]) -> RemoteFile {
    let digits: String = Sha256::digest(content)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    RemoteFile {
        name,
        form: Form::Uncompressed,
        sha256: digits.leak(),
        len: content.len() as u64,
    }
}

/// Returns a file whose stored bytes have a published checksum.
fn remote_stored(name: &'static str, stored: &[u8]) -> RemoteFile {
    RemoteFile {
        form: Form::Stored,
        ..remote(name, stored)
    }
}

fn downloader(mirrors: &[String]) -> Downloader {
    let mut downloader = Downloader::new(mirrors);
    downloader.connect_timeout = Duration::from_secs(2);
    downloader.read_timeout = Duration::from_millis(500);
    downloader.pause = Duration::from_millis(1);
    downloader.progress = false;
    downloader
}

/// Returns the partial download of `images.gz` of this host.
fn part(dir: &Path) -> PathBuf {
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let host = host.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_");
    dir.join(format!(".images.gz.{host}.part"))
}

fn entries(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Returns the mirrors' answers, after checking that no file has the final name.
fn refused(result: Result<(), DatasetError>, dir: &Path, name: &str) -> String {
    let error = result.unwrap_err();
    assert!(!dir.join(name).exists());
    let DatasetError::Download { reasons, .. } = error else {
        panic!("{error}");
    };
    reasons.join("; ")
}

#[test]
fn a_file_is_fetched_once_and_verified() {
    let content = content(300_000);
    let stored = gzip(&content);
    let body = stored.clone();
    let server = Server::new(move |request, stream| serve(&body, request, stream));
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("made/on/the/way");
    let file = remote("images.gz", &content);
    let downloader = downloader(&[server.url()]);
    downloader.fetch(&[file], &dir).unwrap();
    downloader.fetch(&[file], &dir).unwrap();
    assert_eq!(fs::read(dir.join("images.gz")).unwrap(), stored);
    assert_eq!(entries(&dir), ["images.gz"]);
    assert_eq!(server.starts(), [None]);
    assert_eq!(server.seen.lock().unwrap()[0].path, "/mnist/images.gz");
}

#[test]
fn a_cut_connection_is_resumed_where_it_broke() {
    let content = content(200_000);
    let stored = gzip(&content);
    let body = stored.clone();
    let server = Server::new(move |request, stream| match request.from {
        None => send(stream, "200 OK", body.len(), &body[..70_000]),
        Some(_) => serve(&body, request, stream),
    });
    let dir = tempfile::tempdir().unwrap();
    let file = remote("images.gz", &content);
    downloader(&[server.url()])
        .fetch(&[file], dir.path())
        .unwrap();
    assert_eq!(fs::read(dir.path().join("images.gz")).unwrap(), stored);
    assert_eq!(server.starts(), [None, Some(70_000)]);
}

#[test]
fn a_later_run_resumes_what_an_earlier_one_left() {
    let content = content(100_000);
    let stored = gzip(&content);
    for kept in [1, 60_000, stored.len()] {
        let body = stored.clone();
        let server = Server::new(move |request, stream| serve(&body, request, stream));
        let dir = tempfile::tempdir().unwrap();
        fs::write(part(dir.path()), &stored[..kept]).unwrap();
        let file = remote("images.gz", &content);
        downloader(&[server.url()])
            .fetch(&[file], dir.path())
            .unwrap();
        assert_eq!(fs::read(dir.path().join("images.gz")).unwrap(), stored);
        assert_eq!(server.starts(), [Some(kept)]);
        assert_eq!(entries(dir.path()), ["images.gz"]);
    }
}

#[test]
fn a_rest_of_something_else_is_thrown_away() {
    let content = content(100_000);
    let stored = gzip(&content);
    for rest in [5000, 100_500, 200_000] {
        let body = stored.clone();
        let server = Server::new(move |request, stream| serve(&body, request, stream));
        let dir = tempfile::tempdir().unwrap();
        fs::write(part(dir.path()), vec![7; rest]).unwrap();
        let file = remote("images.gz", &content);
        downloader(&[server.url()])
            .fetch(&[file], dir.path())
            .unwrap();
        assert_eq!(fs::read(dir.path().join("images.gz")).unwrap(), stored);
    }
}

#[test]
fn a_server_without_ranges_is_read_from_the_start() {
    let content = content(100_000);
    let stored = gzip(&content);
    let body = stored.clone();
    let server = Server::new(move |_, stream| send(stream, "200 OK", body.len(), &body));
    let dir = tempfile::tempdir().unwrap();
    fs::write(part(dir.path()), &stored[..40_000]).unwrap();
    let file = remote("images.gz", &content);
    downloader(&[server.url()])
        .fetch(&[file], dir.path())
        .unwrap();
    assert_eq!(fs::read(dir.path().join("images.gz")).unwrap(), stored);
    assert_eq!(server.starts(), [Some(40_000)]);
}

#[test]
fn a_server_without_ranges_that_always_breaks_off_is_given_up() {
    let content = content(3_000_000);
    let stored = gzip(&content);
    assert!(stored.len() > 2_500_000);
    let server =
        Server::new(move |_, stream| send(stream, "200 OK", stored.len(), &stored[..2_500_000]));
    let dir = tempfile::tempdir().unwrap();
    let file = remote("images.gz", &content);
    let error = downloader(&[server.url()])
        .fetch(&[file], dir.path())
        .unwrap_err();
    assert!(error.to_string().contains("broke"), "{error}");
    assert!(server.starts().len() < 8, "{:?}", server.starts());
}

#[test]
fn a_wrong_range_is_not_trusted() {
    let content = content(100_000);
    let stored = gzip(&content);
    let body = stored.clone();
    let server = Server::new(move |request, stream| match request.from {
        None => serve(&body, request, stream),
        Some(_) => {
            let head = "206 Partial Content\r\nContent-Range: bytes 0-99/100";
            send(stream, head, 100, &body[..100])
        }
    });
    let dir = tempfile::tempdir().unwrap();
    fs::write(part(dir.path()), &stored[..40_000]).unwrap();
    let file = remote("images.gz", &content);
    downloader(&[server.url()])
        .fetch(&[file], dir.path())
        .unwrap();
    assert_eq!(fs::read(dir.path().join("images.gz")).unwrap(), stored);
    assert_eq!(server.starts(), [Some(40_000), None]);
}

#[test]
fn wrong_content_leaves_nothing_and_the_next_mirror_is_tried() {
    let content = content(50_000);
    let mut wrong = content.clone();
    wrong[1000] ^= 1;
    let bad = Server::new(move |request, stream| serve(&gzip(&wrong), request, stream));
    let file = remote("images.gz", &content);

    let dir = tempfile::tempdir().unwrap();
    let result = downloader(&[bad.url()]).fetch(&[file], dir.path());
    let reasons = refused(result, dir.path(), "images.gz");
    assert!(reasons.contains(file.sha256), "{reasons}");
    assert_eq!(entries(dir.path()), [".download.lock"]);

    let stored = gzip(&content);
    let good = Server::new(move |request, stream| serve(&stored, request, stream));
    let both = downloader(&[bad.url(), good.url()]);
    both.fetch(&[file], dir.path()).unwrap();
    assert_eq!(entries(dir.path()), ["images.gz"]);
}

#[test]
fn pages_instead_of_files_are_refused() {
    let file = remote("images.gz", &content(50_000));
    let page = b"<html>please log in</html>";
    let server = Server::new(|_, stream| send(stream, "200 OK", page.len(), page));
    let dir = tempfile::tempdir().unwrap();
    let result = downloader(&[server.url()]).fetch(&[file], dir.path());
    let reasons = refused(result, dir.path(), "images.gz");
    assert!(reasons.contains("26 bytes"), "{reasons}");
}

#[test]
fn an_error_status_is_reported_with_every_missing_file() {
    let files = [
        remote("images.gz", b"images"),
        remote("labels.gz", b"labels"),
    ];
    let server = Server::new(|_, stream| send(stream, "404 Not Found", 0, b""));
    let dir = tempfile::tempdir().unwrap();
    let error = downloader(&[server.url()])
        .fetch(&files, dir.path())
        .unwrap_err();
    let message = error.to_string();
    for part in ["404", "images.gz, labels.gz", "data.dir", &server.url()] {
        assert!(message.contains(part), "{message}");
    }
    assert!(message.contains(dir.path().to_str().unwrap()), "{message}");
    assert_eq!(server.starts().len(), 1, "a 404 is final");
}

#[test]
fn an_overloaded_server_is_asked_again() {
    let stored = gzip(b"labels");
    let busy = AtomicBool::new(true);
    let server = Server::new(
        move |request, stream| match busy.swap(false, Ordering::SeqCst) {
            true => send(stream, "503 Service Unavailable", 0, b""),
            false => serve(&stored, request, stream),
        },
    );
    let dir = tempfile::tempdir().unwrap();
    let file = remote("labels.gz", b"labels");
    downloader(&[server.url()])
        .fetch(&[file], dir.path())
        .unwrap();
    assert_eq!(server.starts().len(), 2);
}

#[test]
fn a_redirection_is_followed() {
    let stored = gzip(b"labels");
    let server = Server::new(move |request, stream| match request.path.as_str() {
        "/elsewhere" => serve(&stored, request, stream),
        _ => send(stream, "302 Found\r\nLocation: /elsewhere", 0, b""),
    });
    let dir = tempfile::tempdir().unwrap();
    let file = remote("labels.gz", b"labels");
    downloader(&[server.url()])
        .fetch(&[file], dir.path())
        .unwrap();
    assert_eq!(entries(dir.path()), ["labels.gz"]);
}

#[test]
fn an_unreachable_server_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let dir = tempfile::tempdir().unwrap();
    let file = remote("labels.gz", b"labels");
    let result = downloader(std::slice::from_ref(&url)).fetch(&[file], dir.path());
    let reasons = refused(result, dir.path(), "labels.gz");
    assert!(
        reasons.contains(&url) && reasons.contains("refused"),
        "{reasons}"
    );
}

#[test]
fn a_silent_server_is_given_up() {
    let server = Server::new(|_, stream| stream.read(&mut [0]).map(|_| ()));
    let dir = tempfile::tempdir().unwrap();
    let file = remote("labels.gz", b"labels");
    let mut downloader = downloader(&[server.url()]);
    downloader.attempts = 2;
    let reasons = refused(
        downloader.fetch(&[file], dir.path()),
        dir.path(),
        "labels.gz",
    );
    assert!(reasons.contains("timeout"), "{reasons}");
    assert_eq!(server.starts().len(), 2);
}

#[test]
fn endless_bodies_are_cut_off() {
    let file = remote("images.gz", &content(100_000));
    let announced = Server::new(|_, stream| send(stream, "200 OK", 1 << 40, &[0; 1000]));
    let endless = Server::new(|_, stream| {
        write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
        loop {
            stream.write_all(&[0; 4096])?;
        }
    });
    for server in [announced, endless] {
        let dir = tempfile::tempdir().unwrap();
        let result = downloader(&[server.url()]).fetch(&[file], dir.path());
        let reasons = refused(result, dir.path(), "images.gz");
        assert!(reasons.contains("more than 105096 bytes"), "{reasons}");
        assert_eq!(entries(dir.path()), [".download.lock"]);
    }
}

#[test]
fn a_bomb_is_not_unpacked() {
    let bomb = gzip(&vec![0; 50 << 20]);
    let file = remote("images.gz", &content(100_000));
    let server = Server::new(move |request, stream| serve(&bomb, request, stream));
    let dir = tempfile::tempdir().unwrap();
    let result = downloader(&[server.url()]).fetch(&[file], dir.path());
    let reasons = refused(result, dir.path(), "images.gz");
    assert!(
        reasons.contains("longer than the published 100000 bytes"),
        "{reasons}"
    );
}

#[test]
fn two_processes_fetch_a_shared_folder_once() {
    let content = content(100_000);
    let stored = gzip(&content);
    let server = Server::new(move |request, stream| {
        thread::sleep(Duration::from_millis(100));
        serve(&stored, request, stream)
    });
    let dir = tempfile::tempdir().unwrap();
    let file = remote("images.gz", &content);
    let (sender, receiver) = mpsc::channel();
    for _ in 0..4 {
        let (downloader, sender) = (downloader(&[server.url()]), sender.clone());
        let dir = dir.path().to_owned();
        thread::spawn(move || sender.send(downloader.fetch(&[file], &dir)));
    }
    for _ in 0..4 {
        let result = receiver.recv_timeout(Duration::from_secs(20));
        result.expect("it still waits").unwrap();
    }
    assert_eq!(server.starts(), [None]);
    assert_eq!(entries(dir.path()), ["images.gz"]);
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let blocked = dir.path().join("file");
    fs::write(&blocked, "").unwrap();
    let file = remote("labels.gz", b"labels");
    let error = downloader(&[])
        .fetch(&[file], &blocked.join("sub"))
        .unwrap_err();
    assert!(matches!(error, DatasetError::Io { .. }), "{error}");
}

#[test]
fn an_archive_is_fetched_resumed_and_opened() {
    let stored = common::cifar::archive_100().compressed();
    let file = remote_stored("cifar-100-binary.tar.gz", &stored);
    let body = stored.clone();
    let server = Server::new(move |request, stream| match request.from {
        None => send(stream, "200 OK", body.len(), &body[..700]),
        Some(_) => serve(&body, request, stream),
    });
    let dir = tempfile::tempdir().unwrap();
    downloader(&[server.url()])
        .fetch(&[file], dir.path())
        .unwrap();
    assert_eq!(server.starts(), [None, Some(700)]);
    assert_eq!(fs::read(dir.path().join(file.name)).unwrap(), stored);
    let set = Cifar100::open(dir.path(), Split::Test, Cifar100Labels::Fine).unwrap();
    assert_eq!(set.len(), 3);
    assert_eq!(Cifar100::missing(dir.path()), []);
}

/// The same content in another container is not the published file.
#[test]
fn stored_bytes_are_compared_where_they_are_published() {
    let content = content(20_000);
    let stored = gzip(&content);
    let file = remote_stored("images.gz", &stored);
    let mut other = stored.clone();
    other[4] ^= 1; // The time in gzip's header.
    let mut short = stored.clone();
    short.truncate(10_000);
    let mut long = stored.clone();
    long.push(0);
    for (body, reason) in [
        (other, file.sha256),
        (short, "10000 bytes"),
        (long, "more than"),
    ] {
        let server = Server::new(move |request, stream| serve(&body, request, stream));
        let dir = tempfile::tempdir().unwrap();
        let result = downloader(&[server.url()]).fetch(&[file], dir.path());
        let reasons = refused(result, dir.path(), "images.gz");
        assert!(reasons.contains(reason), "{reason}: {reasons}");
        assert!(!reasons.contains("uncompressed"), "{reasons}");
        assert_eq!(entries(dir.path()), [".download.lock"]);
    }
}

#[test]
fn a_data_set_asks_for_its_archive() {
    let server = Server::new(|_, stream| send(stream, "404 Not Found", 0, b""));
    let dir = tempfile::tempdir().unwrap();
    let error = Cifar100::download_with(&downloader(&[server.url()]), dir.path()).unwrap_err();
    assert!(
        error.to_string().contains("cifar-100-binary.tar.gz"),
        "{error}"
    );
    let path = server.seen.lock().unwrap()[0].path.clone();
    assert_eq!(path, "/mnist/cifar-100-binary.tar.gz");
}
