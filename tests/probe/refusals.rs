//! Servers that cannot be talked to: one clear message each, at once.

use std::io::Write;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::server::{Fake, Seen, read};
use crate::common::finished::Finished;

const KEY: &str = "sk-nobody-may-read-this";

/// `xcheck probe` with short limits and a key; whatever happens, the key stands nowhere.
fn run(url: &str) -> (Finished, Duration) {
    let folder = TempDir::new().expect("a temporary directory");
    let started = Instant::now();
    let output = Command::cargo_bin("xcheck")
        .expect("it is built")
        .current_dir(folder.path())
        .env("XCHECK_API_KEY", KEY)
        .env_remove("HTTP_PROXY")
        .env_remove("http_proxy")
        .args([
            "probe",
            url,
            "--server",
            "vllm",
            "--served-model",
            "m",
            "--timeout",
            "0.6",
            "--idle-timeout",
            "0.3",
        ])
        .args(["--connect-timeout", "0.3", "--largest-answer", "100000", "--report", "report"])
        .output()
        .expect("it starts");
    let took = started.elapsed();
    let finished = Finished::of(output);
    let report = std::fs::read_to_string(folder.path().join("report/report.json")).unwrap_or_default();
    for text in [&finished.stdout, &finished.stderr, &report] {
        assert!(!text.contains(KEY), "{text}");
    }
    (finished, took)
}

#[track_caller]
fn assert_refused(url: &str, expected: &str) {
    let (finished, took) = run(url);
    assert_eq!(finished.code, 2, "{}", finished.stderr);
    let errors: Vec<&str> = finished.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{}", finished.stderr);
    assert!(errors[0].contains(expected), "{expected}: {}", finished.stderr);
    assert!(took < Duration::from_secs(20), "{took:?}");
}

/// A server that sends these bytes to whatever is asked, and then does not close.
fn sends(bytes: &'static [u8]) -> Fake {
    Fake::raw(move |listener: TcpListener, _| {
        let mut open = Vec::new();
        for mut stream in listener.incoming().flatten() {
            _ = read(&stream);
            _ = stream.write_all(bytes);
            open.push(stream);
        }
    })
}

fn answers(status: u16, text: &'static str) -> Fake {
    Fake::answering(move || move |_: &str, _: &Value| (status, text.to_owned()))
}

#[test]
fn nobody_there() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    assert_refused(&url, "request failed");
}

#[test]
fn silence() {
    assert_refused(&sends(b"").url, "timeout (");
}

#[test]
fn half_an_answer() {
    assert_refused(
        &sends(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{\"version\": ").url,
        "response ended after 12 bytes",
    );
}

#[test]
fn an_answer_without_an_end() {
    let fake = Fake::raw(|listener: TcpListener, _| {
        for mut stream in listener.incoming().flatten() {
            _ = read(&stream);
            thread::spawn(move || {
                _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
                while stream.write_all(&[b'x'; 4096]).is_ok() {}
            });
        }
    });
    assert_refused(&fake.url, "longer than 100000 bytes");
}

#[test]
fn a_page_for_people() {
    assert_refused(&answers(200, "<html><body>Welcome</body></html>").url, "is this the address of the API?");
}

#[test]
fn an_error_inside() {
    assert_refused(&answers(500, "{\"error\": \"out of memory\"}").url, "HTTP 500");
}

#[test]
fn a_key_that_is_not_taken_is_not_repeated() {
    let fake = answers(401, "{\"error\": \"Incorrect API key: sk-nobody-may-read-this\"}");
    assert_refused(&fake.url, "Incorrect API key: [key]");
}

/// Where a message is cut, where it is written with escapes, where it is a field of an answer.
#[test]
fn a_key_is_hidden_wherever_it_is_repeated() {
    let cut: &'static str = format!("{} {KEY}", "x".repeat(290)).leak();
    assert_refused(&answers(401, cut).url, "HTTP 401");
    let said = r#"{"error": {"message": "Incorrect API key: sk\u002dnobody-may-read-this"}}"#;
    assert_refused(&answers(401, said).url, "HTTP 401: Incorrect API key: [key]");
    let escaped = r#"{"tokens": "sk\u002dnobody-may-read-this", "choices": []}"#;
    assert_refused(&answers(200, escaped).url, "[key]");
}

/// A proxy would be sent it in the clear.
#[test]
fn nothing_of_this_machine_goes_through_a_proxy() {
    let (proxy, fake) = (answers(200, "{}"), answers(500, "{}"));
    let mut command = Command::cargo_bin("xcheck").expect("it is built");
    let asked =
        command.env("XCHECK_API_KEY", KEY).env("HTTP_PROXY", &proxy.url).env("http_proxy", &proxy.url);
    let asked = asked.args(["probe", &fake.url, "--server", "vllm", "--served-model", "m", "--no-report"]);
    assert_eq!(asked.output().expect("it starts").status.code(), Some(2));
    assert_eq!(proxy.count(), 0);
    assert!(fake.count() > 0);
}

#[test]
fn other_types_than_expected() {
    let found = r#"{"choices": [{"text": "a", "logprobs": {"tokens": ["token_id:5"], "token_logprobs": ["high"], "top_logprobs": []}}]}"#;
    let fake = answers(200, found);
    assert_refused(&fake.url, "expected a");
}

#[test]
fn a_server_that_stays_busy_is_asked_again_and_then_not() {
    let fake = answers(503, "{}");
    let (finished, _) = run(&fake.url);
    assert!(finished.stderr.contains("stayed busy"), "{}", finished.stderr);
    assert_eq!(fake.count(), 4, "once, and three times again");
}

#[test]
fn a_wait_that_is_asked_for_is_waited_and_no_longer_than_limits_allow() {
    let waits = |seconds: &'static str| {
        Fake::raw(move |listener: TcpListener, seen: Arc<Mutex<Vec<Seen>>>| {
            for mut stream in listener.incoming().flatten() {
                let Some((request, _)) = read(&stream) else { continue };
                seen.lock().expect("nobody panicked").push(request);
                let head = format!(
                    "HTTP/1.1 429 X\r\nRetry-After: {seconds}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                );
                _ = stream.write_all(head.as_bytes());
            }
        })
    };
    let short = waits("0.1");
    let (finished, took) = run(&short.url);
    assert!(
        finished.stderr.contains("stayed busy") && took >= Duration::from_millis(300),
        "{}",
        finished.stderr
    );
    let long = waits("3600");
    assert_refused(&long.url, "asks to wait 3600 s");
    assert_eq!(long.count(), 1);
}

/// A redirect to another port, which waits for the key.
#[test]
fn a_key_never_goes_where_a_redirect_points() {
    let other = answers(200, "{}");
    let to = other.url.clone();
    let fake = Fake::raw(move |listener: TcpListener, _| {
        for mut stream in listener.incoming().flatten() {
            _ = read(&stream);
            let head = format!(
                "HTTP/1.1 307 X\r\nLocation: {to}/version?a=b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
            _ = stream.write_all(head.as_bytes());
        }
    });
    assert_refused(&fake.url, "redirects are not followed");
    assert_eq!(other.count(), 0);
}

#[test]
fn the_key_is_sent_to_the_server_that_was_named() {
    let fake = answers(500, "{}");
    run(&fake.url);
    let seen = fake.seen.lock().expect("nobody panicked");
    assert_eq!(seen[0].authorization.as_deref(), Some(&*format!("Bearer {KEY}")));
}

#[test]
fn addresses_that_are_none() {
    for (url, expected) in [
        ("ftp://host", "is not an HTTP address"),
        ("http://name:secret@host", "contains a user name or a key"),
        ("http://host/?key=1", "contains a query or a fragment"),
    ] {
        assert_refused(url, expected);
    }
}

#[test]
fn a_server_that_is_none_is_not_taken_for_one() {
    let fake = Fake::answering(|| |_: &str, _: &Value| (404, json!({"detail": "Not Found"}).to_string()));
    let folder = TempDir::new().expect("a temporary directory");
    let mut command = Command::cargo_bin("xcheck").expect("it is built");
    let output = command
        .current_dir(folder.path())
        .args(["probe", &fake.url, "--no-report"])
        .output()
        .expect("it starts");
    let finished = Finished::of(output);
    assert_eq!(finished.code, 2, "{}", finished.stderr);
    assert!(finished.stderr.contains("no known server answers at this address"), "{}", finished.stderr);
}
