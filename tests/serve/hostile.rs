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

/// What an honest client waits for an answer.
fn answered_within(server: &Server) -> Duration {
    let begun = Instant::now();
    let answer = server.post("/tokenize", &json!({"prompt": "Once upon a time"}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    begun.elapsed()
}

#[test]
fn half_a_head_or_half_a_body_delays_nobody_else() {
    let server = Server::tiny(&[]);
    let quick = Duration::from_secs(2);
    let heads: Vec<_> =
        (0..300).map(|_| connected(&server, "GET /health HTTP/1.1\r\nhost: x\r\nx-")).collect();
    let waited = answered_within(&server);
    assert!(waited < quick, "half a head: {waited:?}");
    let head = "POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{";
    let bodies: Vec<_> = (0..300).map(|_| connected(&server, head)).collect();
    let waited = answered_within(&server);
    assert!(waited < quick, "half a body: {waited:?}");
    // Those that have asked and stay connected are closed for others, too.
    let idle: Vec<_> =
        (0..300).map(|_| connected(&server, "GET /health HTTP/1.1\r\nhost: x\r\n\r\n")).collect();
    let waited = answered_within(&server);
    assert!(waited < quick, "idle: {waited:?}");
    drop((heads, bodies, idle));
}

/// Who has asked, and is being answered, is not closed for others.
#[test]
fn a_request_that_is_complete_is_answered_however_many_come_after() {
    let server = Server::tiny(&[]);
    let body = json!({"prompt": vec![[1, 5, 9]; 16], "max_tokens": 200, "ignore_eos": true}).to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let honest = connected(&server, &head);
    // The one that asks for figures is another.
    server.wait_for("xcheck_requests_in_flight", |requests| requests > 1.0);
    let _silent: Vec<_> = (0..600).map(|_| connected(&server, "GET ")).collect();
    let answer = answered(&honest);
    assert!(answer.contains("200"), "{answer}");
}

#[test]
fn a_body_that_is_announced_as_too_large_is_refused_before_it_comes() {
    let server = Server::tiny(&[]);
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let begun = Instant::now();
    let answer = answered(&connected(&server, &format!("{head}content-length: 5000000\r\n\r\n")));
    assert!(answer.contains("413"), "{answer}");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[test]
fn bodies_that_take_all_memory_for_bodies_are_told_to_come_back_and_small_ones_are_not() {
    let server = Server::tiny(&["--max-body", "100000"]);
    let head = |length: usize| {
        format!(
            "POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    let _stalled: Vec<_> = (0..32).map(|_| connected(&server, &head(100_000))).collect();
    let large = json!({"prompt": "a".repeat(90_000)}).to_string();
    // The server takes the heads one after the other, on a machine with other work.
    let answered_by = |status: u16| {
        let begun = Instant::now();
        loop {
            let answer = server.post_text("/tokenize", &large);
            assert!([200, 503].contains(&answer.status), "{}", answer.body);
            if answer.status == status || begun.elapsed() > Duration::from_secs(20) {
                return answer;
            }
            thread::sleep(Duration::from_millis(50));
        }
    };
    let refused = answered_by(503);
    refused.refused(503, None, &["retry later"]);
    assert_eq!(refused.retry_after.as_deref(), Some("1"));
    assert!(answered_within(&server) < Duration::from_secs(5), "a small request needs no memory of theirs");
    drop(_stalled);
    assert_eq!(answered_by(200).status, 200, "there is room again");
}

#[test]
fn a_hundred_bodies_that_lack_a_byte_lie_in_memory_a_few_at_a_time() {
    let server = Server::tiny(&[]);
    let before = server.figure("xcheck_resident_memory_bytes");
    let body = "x".repeat(4 << 20);
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    thread::scope(|scope| {
        let sending = || {
            let mut stream = connected(&server, &head);
            stream.set_write_timeout(Some(Duration::from_secs(1))).expect("set");
            _ = stream.write_all(&body.as_bytes()[1..]); // what there is no room for is not read
            stream
        };
        let clients: Vec<_> = (0..100).map(|_| scope.spawn(sending)).collect();
        let clients: Vec<_> = clients.into_iter().map(|client| client.join().expect("it connects")).collect();
        let more = server.figure("xcheck_resident_memory_bytes") - before;
        assert!(before > 0.0 && more < 300e6, "{before} and {more}");
        drop(clients);
    });
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
    let taken = server.figure("xcheck_resident_memory_bytes");
    assert!(taken > 0.0 && taken < 3e9, "{taken}");
}
