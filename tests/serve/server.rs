//! The program as a server, on a port that was free, and a plain client.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A server that ends with the test.
pub struct Server {
    child: Child,
    pub url: String,
}

/// An answer.
pub struct Answer {
    pub status: u16,
    pub retry_after: Option<String>,
    pub body: String,
}

impl Server {
    /// `xcheck serve` with these arguments, once it listens.
    pub fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin("xcheck"))
            .args([&["serve", "--port", "0"], arguments].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("it is piped")).read_line(&mut line).expect("it prints");
        let url = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
        if !url.starts_with("http://127.0.0.1:") {
            let mut problem = String::new();
            _ = child.stderr.take().expect("it is piped").read_to_string(&mut problem);
            panic!("it does not listen: {line}{problem}");
        }
        Self { child, url }
    }

    /// The model that ships with a tokenizer.
    pub fn tiny(arguments: &[&str]) -> Self {
        Self::start(&[&["--model", "tiny-llama2-hf"], arguments].concat())
    }

    pub fn get(&self, route: &str) -> Answer {
        answer(agent().get(format!("{}{route}", self.url)).call())
    }

    pub fn post(&self, route: &str, body: &Value) -> Answer {
        self.post_text(route, &body.to_string())
    }

    pub fn post_text(&self, route: &str, body: &str) -> Answer {
        let request = agent().post(format!("{}{route}", self.url));
        answer(request.header("content-type", "application/json").send(body))
    }

    /// The document that a right request is answered by.
    #[track_caller]
    pub fn ask(&self, route: &str, body: &Value) -> Value {
        self.post(route, body).document()
    }

    /// The documents of a stream, which ends as it should.
    #[track_caller]
    pub fn stream(&self, route: &str, body: &Value) -> Vec<Value> {
        let answer = self.post(route, body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let lines = answer.body.lines().filter(|line| !line.is_empty() && !line.starts_with(':'));
        let mut data: Vec<_> =
            lines.map(|line| line.strip_prefix("data: ").unwrap_or_else(|| panic!("{line}"))).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", answer.body);
        data.into_iter().map(|text| serde_json::from_str(text).expect("a document")).collect()
    }

    /// A figure of `/metrics`; 0 where it is not there yet.
    pub fn figure(&self, name: &str) -> f64 {
        let text = self.get("/metrics").body;
        let line =
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
        line.map_or(0.0, |figure| figure.parse().expect("a number"))
    }

    /// Waits until a figure is what it should be.
    #[track_caller]
    pub fn wait_for(&self, name: &str, is_right: impl Fn(f64) -> bool) {
        let start = Instant::now();
        while !is_right(self.figure(name)) {
            assert!(start.elapsed() < Duration::from_secs(60), "{name}: {}", self.get("/metrics").body);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Tells it to end, and gives back its exit code.
    #[cfg(unix)]
    pub fn terminate(mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").arg(id).status().expect("kill runs").success());
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Answer {
    /// What it says, where it is one.
    #[track_caller]
    pub fn document(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        serde_json::from_str(&self.body).expect("a document")
    }

    /// Makes sure that it is a refusal of OpenAI's shape, about a field, with words.
    #[track_caller]
    pub fn refused(&self, status: u16, param: Option<&str>, words: &[&str]) {
        assert_eq!(self.status, status, "{}", self.body);
        let told: Value = serde_json::from_str(&self.body).expect("a document");
        let error = told["error"].as_object().expect("an error");
        let keys: Vec<_> = error.keys().map(String::as_str).collect();
        assert_eq!(keys, ["code", "message", "param", "type"]);
        assert_eq!(error["param"].as_str(), param, "{told}");
        for word in words {
            assert!(error["message"].as_str().expect("a text").contains(word), "'{word}' is not in {told}");
        }
    }
}

fn agent() -> ureq::Agent {
    let limit = Some(Duration::from_secs(300));
    ureq::Agent::config_builder().http_status_as_error(false).timeout_global(limit).build().into()
}

fn answer(answered: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Answer {
    let mut response = answered.expect("it answers");
    let retry_after =
        response.headers().get("retry-after").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let body = response.body_mut().read_to_string().expect("it is text");
    Answer { status: response.status().as_u16(), retry_after, body }
}
