//! A hub on this machine that answers as the real one does, and can be told to misbehave.
//!
//! Small files come from `resolve` itself; large ones (Git LFS) by a redirect to another host, the content delivery
//! network. Here that is `localhost`, while the hub is `127.0.0.1`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::{fs, thread};

use serde_json::{Value, json};
use sha1::{Digest as _, Sha1};

use crate::common::hash::sha256;

/// The commit that every repository is at.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Files from this length on are large ones.
const LARGE: usize = 25_000;

/// The files of a repository.
pub type Files = BTreeMap<String, Vec<u8>>;

/// How the hub misbehaves.
#[derive(Clone, Default)]
pub struct Faults {
    /// Connections of large files break after this many bytes, and bring nothing once a file is that far.
    pub cut: Option<usize>,
    /// Each connection of a large file brings at most this many bytes.
    pub trickle: Option<usize>,
    /// A byte of every large file is wrong.
    pub corrupt: bool,
    /// Ranges are ignored: files always come whole.
    pub no_ranges: bool,
    /// Repositories are gated; this token has access.
    pub gated: Option<&'static str>,
    /// Everything is answered with this status.
    pub broken: Option<u16>,
    /// Large files are redirected to this port, and not to another host.
    pub beside: Option<u16>,
    /// The list of files is this.
    pub listing: Option<Value>,
}

/// A request as it came.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub host: String,
    pub range: Option<String>,
    pub authorization: Option<String>,
}

#[derive(Default)]
struct State {
    repos: BTreeMap<String, Files>,
    faults: Faults,
    seen: Vec<Request>,
}

/// A hub that lives as long as the test.
#[derive(Clone)]
pub struct Hub {
    port: u16,
    state: Arc<Mutex<State>>,
}

impl Hub {
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let hub = Self { port: listener.local_addr().expect("bound").port(), state: Arc::default() };
        let serving = hub.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let hub = serving.clone();
                thread::spawn(move || hub.answer(stream));
            }
        });
        hub
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Serves a folder or a file of `checkpoints/` as a repository.
    pub fn serve(&self, repo: &str, paths: &[&str]) -> &Self {
        for path in paths {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("checkpoints").join(path);
            let entries =
                fs::read_dir(&path).map(|entries| entries.flatten().map(|entry| entry.path()).collect());
            for file in entries.unwrap_or_else(|_| vec![path]) {
                let name = file.file_name().expect("a file").to_str().expect("plain").to_owned();
                self.put(repo, &name, fs::read(&file).expect("it is there"));
            }
        }
        self
    }

    pub fn put(&self, repo: &str, name: &str, content: impl Into<Vec<u8>>) {
        self.state().repos.entry(repo.to_owned()).or_default().insert(name.to_owned(), content.into());
    }

    pub fn misbehave(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// The requests since this was last asked.
    pub fn seen(&self) -> Vec<Request> {
        std::mem::take(&mut self.state().seen)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds this")
    }

    fn answer(&self, mut stream: TcpStream) -> Option<()> {
        let request = Request::read(&stream)?;
        let reply = {
            let mut state = self.state();
            state.seen.push(request.clone());
            state.reply(&request, self.port)
        };
        let body = if request.method == "HEAD" { &[][..] } else { reply.body() };
        stream.write_all(reply.head().as_bytes()).ok()?;
        stream.write_all(body).ok()
    }
}

impl Request {
    fn read(stream: &TcpStream) -> Option<Self> {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        let first = lines.next()?;
        let mut words = first.split(' ').map(str::to_owned);
        let mut request = Self { method: words.next()?, path: words.next()?, ..Self::default() };
        for line in lines.take_while(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':')?;
            let value = value.trim().to_owned();
            match name.to_lowercase().as_str() {
                "host" => request.host = value,
                "range" => request.range = Some(value),
                "authorization" => request.authorization = Some(value),
                _ => {}
            }
        }
        Some(request)
    }
}

struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// How much of the body is sent before the connection breaks.
    sent: usize,
}

impl Reply {
    fn new(status: u16, headers: Vec<(&'static str, String)>, body: Vec<u8>) -> Self {
        Self { status, headers, sent: body.len(), body }
    }

    fn refusal(status: u16, code: &str, message: &str) -> Self {
        let headers = vec![("X-Error-Code", code.to_owned()), ("X-Error-Message", message.to_owned())];
        Self::new(status, headers, Vec::new())
    }

    fn redirect(status: u16, to: String) -> Self {
        Self::new(status, vec![("Location", to)], Vec::new())
    }

    fn head(&self) -> String {
        let headers: String =
            self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = self.body.len();
        format!(
            "HTTP/1.1 {} .\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n",
            self.status
        )
    }

    fn body(&self) -> &[u8] {
        &self.body[..self.sent]
    }
}

impl State {
    fn reply(&self, request: &Request, port: u16) -> Reply {
        if let Some(status) = self.faults.broken {
            return Reply::new(status, Vec::new(), Vec::new());
        }
        let path = request.path.split('?').next().unwrap_or_default();
        if path.contains("old-org/") {
            return Reply::redirect(307, request.path.replace("old-org/", "tiny-org/")); // a repository that moved
        }
        if let Some(hash) = path.strip_prefix("/cdn/") {
            return self.large(request, hash);
        }
        if let Some(rest) = path.strip_prefix("/api/models/") {
            return match rest.split_once("/revision/").or_else(|| rest.split_once("/tree/")) {
                Some((repo, _)) if path.contains("/tree/") => self.with(repo, tree),
                Some((repo, _)) => {
                    self.with(repo, |files| self.faults.listing.clone().unwrap_or_else(|| listing(files)))
                }
                None => Reply::new(404, Vec::new(), Vec::new()),
            };
        }
        match path[1..].split_once("/resolve/").and_then(|(repo, rest)| Some((repo, rest.split_once('/')?.1)))
        {
            Some((repo, file)) => self.resolve(request, repo, file, port),
            None => Reply::new(404, Vec::new(), Vec::new()),
        }
    }

    fn with(&self, repo: &str, say: impl FnOnce(&Files) -> Value) -> Reply {
        match self.repos.get(repo) {
            Some(files) => Reply::new(
                200,
                vec![("Content-Type", "application/json".into())],
                say(files).to_string().into(),
            ),
            None => Reply::refusal(401, "RepoNotFound", "Repository not found"),
        }
    }

    fn resolve(&self, request: &Request, repo: &str, file: &str, port: u16) -> Reply {
        if let Some(token) = self.faults.gated {
            match request.authorization.as_deref().and_then(|sent| sent.strip_prefix("Bearer ")) {
                None => return Reply::refusal(401, "GatedRepo", "Access to this model is restricted."),
                Some(sent) if sent != token => {
                    return Reply::refusal(403, "GatedRepo", "You are not in the list.");
                }
                Some(_) => {}
            }
        }
        let Some(content) = self.repos.get(repo).and_then(|files| files.get(file)) else {
            return Reply::refusal(404, "EntryNotFound", "Entry not found");
        };
        let mut reply = if content.len() < LARGE {
            ranged(request, content, self.faults.no_ranges)
        } else {
            let there = self.faults.beside.map(|port| format!("127.0.0.1:{port}"));
            let there = there.unwrap_or_else(|| format!("localhost:{port}"));
            Reply::redirect(302, format!("http://{there}/cdn/{}", sha256(content)))
        };
        reply.headers.push(("X-Repo-Commit", COMMIT.to_owned()));
        if content.len() < LARGE {
            reply.headers.push(("ETag", format!("\"{}\"", git_blob(content))));
        } else {
            reply.headers.push(("X-Linked-ETag", format!("\"{}\"", sha256(content))));
            reply.headers.push(("X-Linked-Size", content.len().to_string()));
        }
        reply
    }

    fn large(&self, request: &Request, hash: &str) -> Reply {
        let mut files = self.repos.values().flat_map(Files::values);
        let Some(content) = files.find(|content| sha256(content) == hash) else {
            return Reply::new(403, Vec::new(), Vec::new());
        };
        let mut content = content.clone();
        if self.faults.corrupt {
            content[LARGE / 2] ^= 1;
        }
        let mut reply = ranged(request, &content, self.faults.no_ranges);
        let start = content.len() - reply.body.len();
        if let Some(cut) = self.faults.cut {
            reply.sent = reply.sent.min(cut.saturating_sub(start));
        }
        reply.sent = reply.sent.min(self.faults.trickle.unwrap_or(usize::MAX));
        reply
    }
}

/// All of it, or from where it was asked for.
fn ranged(request: &Request, content: &[u8], no_ranges: bool) -> Reply {
    let range = request.range.as_deref().filter(|_| !no_ranges);
    let start =
        range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    match start {
        None => Reply::new(200, Vec::new(), content.to_vec()),
        Some(start) if start >= content.len() => Reply::new(416, Vec::new(), Vec::new()),
        Some(start) => {
            let range = format!("bytes {start}-{}/{}", content.len() - 1, content.len());
            Reply::new(206, vec![("Content-Range", range)], content[start..].to_vec())
        }
    }
}

/// What `api/models/<repo>/revision/main?blobs=true` says of a repository.
pub fn listing(files: &Files) -> Value {
    let sibling = |(name, content): (&String, &Vec<u8>)| {
        let mut sibling = json!({"rfilename": name, "size": content.len(), "blobId": git_blob(content)});
        if content.len() >= LARGE {
            sibling["lfs"] = json!({"sha256": sha256(content), "size": content.len(), "pointerSize": 135});
        }
        sibling
    };
    json!({"id": "any", "sha": COMMIT, "gated": false, "siblings": files.iter().map(sibling).collect::<Vec<_>>()})
}

/// The same as `huggingface_hub` asks for it before it downloads a snapshot.
fn tree(files: &Files) -> Value {
    let entry = |(name, content): (&String, &Vec<u8>)| {
        let mut entry =
            json!({"type": "file", "path": name, "size": content.len(), "oid": git_blob(content)});
        if content.len() >= LARGE {
            entry["lfs"] = json!({"oid": sha256(content), "size": content.len(), "pointerSize": 135});
        }
        entry
    };
    files.iter().map(entry).collect()
}

pub fn git_blob(content: &[u8]) -> String {
    let header = format!("blob {}\0", content.len());
    hex(&Sha1::new().chain_update(header).chain_update(content).finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
