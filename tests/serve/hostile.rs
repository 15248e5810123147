//! Clients that want to keep the server from others.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::server::Server;

/// The first line of what is answered, or nothing where the connection was closed.
fn answered(mut stream: &TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
    let mut bytes = [0; 4096];
    let read = stream.read(&mut bytes).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).lines().next().unwrap_or_default().to_owned()
}

fn connected(server: &Server, said: &str) -> TcpStream {
    let address = server.url.strip_prefix("http://").expect("it is one");
    let mut stream = TcpStream::connect(address).expect("it listens");
    _ = stream.write_all(said.as_bytes()); // what is refused early is read no further
    stream
}

#[test]
fn who_says_nothing_keeps_nobody_out() {
    let server = Server::tiny(&[]);
    let begun = Instant::now();
    let silent: Vec<_> =
        (0..300).map(|_| connected(&server, "GET /health HTTP/1.1\r\nhost: x\r\nx-")).collect();
    assert_eq!(server.get("/health").status, 200);
    assert!(begun.elapsed() < Duration::from_secs(50), "{:?}", begun.elapsed());
    let first = answered(&silent[0]);
    assert!(first.is_empty() || first.contains("408"), "{first}");
}

#[test]
fn heads_without_end_and_bodies_that_are_announced_alone_are_refused() {
    let server = Server::tiny(&[]);
    let many: String = (0..100_000).map(|index| format!("x-{index}: y\r\n")).collect();
    let head = |more: &str| {
        format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{more}")
    };
    let answer = answered(&connected(&server, &head(&many)));
    assert!(answer.is_empty() || answer.contains("431"), "{answer}");
    let answer = answered(&connected(&server, &head(&format!("x: {}\r\n\r\n", "y".repeat(1 << 22)))));
    assert!(answer.is_empty() || answer.contains("431"), "{answer}");
    for length in ["99999999999999999999", "18446744073709551615", "-1", "1, 2"] {
        let answer = answered(&connected(&server, &head(&format!("content-length: {length}\r\n\r\n{{"))));
        assert!(["400", "413", "431"].iter().any(|code| answer.contains(code)), "{length}: {answer}");
    }
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn bodies_that_are_nested_or_ask_for_all_are_refused() {
    let server = Server::tiny(&[]);
    let deep = format!("{{\"prompt\": {}1{}}}", "[".repeat(1 << 20), "]".repeat(1 << 20));
    server.post_text("/v1/completions", &deep).refused(400, None, &["recursion limit"]);
    let told = format!(
        "{{\"messages\": [{{\"role\": \"user\", \"content\": \"x\", \"odd\": {}}}]}}",
        "[".repeat(1 << 20)
    );
    server.post_text("/v1/chat/completions", &told).refused(400, None, &["recursion limit"]);
    for (name, value) in
        [("max_tokens", json!(u64::MAX)), ("max_tokens", json!(1e300)), ("prompt_logprobs", json!(u64::MAX))]
    {
        let body = json!({"prompt": [1, 5], (name): value});
        server.post("/v1/completions", &body).refused(400, Some(name), &["expected"]);
    }
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "a".repeat(1 << 21)})).status, 400);
}

#[test]
fn many_large_bodies_at_once_take_no_more_than_a_few() {
    let server = Server::tiny(&[]);
    let lists = format!(
        "{{\"messages\": [{{\"role\": \"user\", \"content\": \"x\"}}], \"chat_template_kwargs\": {{\"x\": [{}1]}}}}",
        "[],".repeat(1 << 20)
    );
    thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| assert!(server.post_text("/v1/chat/completions", &lists).status < 500));
        }
    });
    assert!(server.figure("process_resident_memory_bytes") < 3e9);
}
