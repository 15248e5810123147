//! A server of files on this machine that gives parts of them, counts what it gives, and can be told to misbehave. Below
//! [`BUCKET`] it gives the same as a store of objects does.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use std::{fs, thread};

/// What stands before a path where the server is asked as a store.
pub const BUCKET: &str = "bucket";

/// How the server misbehaves.
#[derive(Clone, Default)]
pub struct Faults {
    /// Files always come whole.
    pub no_ranges: bool,
    /// Neither ETag nor date.
    pub no_pin: bool,
    /// A date and no ETag.
    pub dated: bool,
    /// So many requests are answered with this status before others are answered rightly.
    pub refuse: Option<(usize, u16)>,
    /// Each connection brings at most this many bytes.
    pub cut: Option<usize>,
    /// After this many bytes of all files together nothing comes any more, and nobody hangs up.
    pub hang_after: Option<usize>,
    /// After this many requests every file is another one.
    pub change_after: Option<usize>,
    /// Whoever asks without this query has no access.
    pub signature: Option<&'static str>,
    /// Whoever does not sign with this key has no access, and is told which was taken.
    pub key: Option<&'static str>,
}

/// A request for a file, and what was given of it.
#[derive(Clone, Debug)]
pub struct Given {
    pub path: String,
    pub range: Range<usize>,
    pub authorization: Option<String>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    faults: Faults,
    asked: usize,
    sent: usize,
    given: Vec<Given>,
}

/// A server that lives as long as the test.
#[derive(Clone)]
pub struct Server {
    port: u16,
    state: Arc<Mutex<State>>,
}

impl Server {
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let server = Self { port: listener.local_addr().expect("bound").port(), state: Arc::default() };
        let serving = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = serving.clone();
                thread::spawn(move || server.answer(stream));
            }
        });
        server
    }

    /// The URL of a file or folder.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    /// Serves what is below a folder of `checkpoints/`, by the paths it has there.
    pub fn serve(&self, folder: &str) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints");
        for entry in fs::read_dir(root.join(folder)).expect("it ships").flatten() {
            let name = format!("{folder}/{}", entry.file_name().to_str().expect("plain"));
            match entry.path().is_dir() {
                true => self.serve(&name),
                false => self.put(&name, fs::read(entry.path()).expect("it is there")),
            }
        }
    }

    pub fn put(&self, path: &str, content: Vec<u8>) {
        self.state().files.insert(path.to_owned(), content);
    }

    pub fn file(&self, path: &str) -> Vec<u8> {
        self.state().files[path].clone()
    }

    pub fn misbehave(&self, faults: Faults) {
        let mut state = self.state();
        (state.faults, state.asked, state.sent) = (faults, 0, 0);
    }

    /// What was given since this was last asked.
    pub fn given(&self) -> Vec<Given> {
        std::mem::take(&mut self.state().given)
    }

    /// How many bytes that were.
    pub fn bytes(&self) -> usize {
        self.given().iter().map(|given| given.range.len()).sum()
    }

    /// Bytes that were given since the server was told how to behave.
    pub fn sent(&self) -> usize {
        self.state().sent
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds this")
    }

    fn answer(&self, mut stream: TcpStream) -> Option<()> {
        let (head, body, hangs) = self.reply(read(&stream)?);
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(&body).ok()?;
        if hangs {
            thread::sleep(Duration::from_secs(600));
        }
        Some(())
    }

    fn reply(&self, request: Request) -> (String, Vec<u8>, bool) {
        let Request { path, query, range, authorization, if_match } = request;
        let path = path.as_str();
        let mut state = self.state();
        state.asked += 1;
        let (asked, faults) = (state.asked, state.faults.clone());
        if let Some((times, status)) = faults.refuse
            && asked <= times
        {
            return refusal(status, "SlowDown");
        }
        if faults.signature.is_some_and(|signature| !query.contains(signature)) {
            return refusal(403, "AccessDenied");
        }
        let signed = authorization.clone().unwrap_or_default();
        if faults.key.is_some_and(|key| !signed.contains(key)) {
            return refusal(403, &format!("InvalidAccessKeyId</Code><Told>{signed}</Told><Code>"));
        }
        let Some(content) = state.files.get(path).cloned() else { return refusal(404, "NoSuchKey") };
        let version = faults.change_after.is_some_and(|after| asked > after) as u32;
        let tag = format!("\"{path}-{version}\"");
        if if_match.is_some_and(|wanted| wanted != tag) {
            return refusal(412, "PreconditionFailed");
        }
        let range = range.filter(|_| !faults.no_ranges);
        let given = range.clone().map_or(0..content.len(), |range| range.start..range.end.min(content.len()));
        let mut sent = faults.cut.unwrap_or(usize::MAX).min(given.len());
        let left = faults.hang_after.map_or(usize::MAX, |after| after.saturating_sub(state.sent));
        let hangs = left < sent;
        sent = sent.min(left);
        state.sent += sent;
        state.given.push(Given {
            path: path.to_owned(),
            range: given.start..given.start + sent,
            authorization,
        });
        let date = "Last-Modified: Sun, 22 Nov 2026 06:00:00 GMT\r\n";
        let pin = match () {
            () if faults.no_pin => String::new(),
            () if faults.dated => date.to_owned(),
            () => format!("ETag: {tag}\r\n{date}"),
        };
        let (status, place) = match range {
            Some(_) => {
                (206, format!("Content-Range: bytes {}-{}/{}\r\n", given.start, given.end - 1, content.len()))
            }
            None => (200, String::new()),
        };
        let head = format!(
            "HTTP/1.1 {status} .\r\n{pin}{place}Content-Length: {}\r\nConnection: close\r\n\r\n",
            given.len()
        );
        (head, content[given.start..given.start + sent].to_vec(), hangs)
    }
}

/// A refusal, in the words of a store.
fn refusal(status: u16, code: &str) -> (String, Vec<u8>, bool) {
    let body = format!("<Error><Code>{code}</Code></Error>").into_bytes();
    let head = format!("HTTP/1.1 {status} .\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    (head, body, false)
}

#[derive(Default)]
struct Request {
    path: String,
    query: String,
    range: Option<Range<usize>>,
    authorization: Option<String>,
    if_match: Option<String>,
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let first = lines.next()?;
    let target = first.split(' ').nth(1)?.to_owned();
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let path = path.replace("%2F", "/").replace("%2E", ".").replace("%2D", "-").replace("%5F", "_");
    let path = path.strip_prefix(&format!("/{BUCKET}")).unwrap_or(&path)[1..].to_owned();
    let mut request = Request { path, query: query.to_owned(), ..Request::default() };
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ")?;
        match name.to_lowercase().as_str() {
            "range" => {
                let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
                request.range = Some(first.parse().ok()?..last.parse::<usize>().ok()? + 1);
            }
            "authorization" => request.authorization = Some(value.to_owned()),
            "if-match" => request.if_match = Some(value.to_owned()),
            _ => {}
        }
    }
    Some(request)
}
