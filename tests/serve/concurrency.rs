//! Several clients at once, and those that leave.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use serde_json::{Value, json};

use super::server::Server;

/// Different prompts, drawn and greedy, short and long.
fn requests(count: usize) -> Vec<Value> {
    let request = |index: usize| {
        json!({
            "prompt": (0..3 + index * 5).map(|at| 3 + (at * 31 + index * 7) % 500).collect::<Vec<_>>(),
            "max_tokens": 30 + index,
            "temperature": if index.is_multiple_of(2) { 0.0 } else { 1.0 },
            "seed": index,
            "logprobs": 5,
            "echo": index.is_multiple_of(3),
        })
    };
    (0..count).map(request).collect()
}

/// All choices of answers, whose ids and times differ.
fn choices(server: &Server, requests: &[Value]) -> Vec<Value> {
    thread::scope(|scope| {
        let asked: Vec<_> = requests
            .iter()
            .map(|request| scope.spawn(|| server.ask("/v1/completions", request)["choices"].take()))
            .collect();
        asked.into_iter().map(|answer| answer.join().expect("it is answered")).collect()
    })
}

#[test]
fn eight_concurrent_requests_get_the_bits_that_each_gets_alone() {
    let server = Server::tiny(&["--parallel", "8"]);
    let requests = requests(8);
    let alone: Vec<Value> =
        requests.iter().map(|request| choices(&server, std::slice::from_ref(request)).remove(0)).collect();
    for _ in 0..3 {
        assert_eq!(choices(&server, &requests), alone);
    }
    // Each is known from the others: one in another's place would be seen.
    for (index, one) in alone.iter().enumerate() {
        assert!(alone[index + 1..].iter().all(|other| other != one));
    }
}

#[test]
fn a_list_of_prompts_is_answered_in_its_order() {
    let server = Server::tiny(&["--parallel", "3", "--queue", "64"]);
    let prompts: Vec<Value> = (0..20).map(|index| json!([1, 3 + index, 40 + index])).collect();
    let ask = |prompt: Value| server.ask("/v1/completions", &json!({"prompt": prompt, "temperature": 0}));
    let together = ask(Value::Array(prompts.clone()));
    for (index, prompt) in prompts.into_iter().enumerate() {
        let mut alone = ask(prompt)["choices"][0].take();
        alone["index"] = index.into();
        assert_eq!(together["choices"][index], alone);
    }
}

/// Sends a request whose answer would take long, hears of its beginning, and leaves.
fn leave(server: &Server, streams: bool) -> usize {
    const PROMPTS: usize = 200;
    let prompts: Vec<Value> = (0..PROMPTS).map(|index| json!([1, 3 + index])).collect();
    let asked =
        json!({"prompt": prompts, "max_tokens": 200, "ignore_eos": true, "stream": streams}).to_string();
    let mut client =
        TcpStream::connect(server.url.strip_prefix("http://").expect("a URL")).expect("it listens");
    write!(
        client,
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{asked}",
        asked.len()
    )
    .expect("it is read");
    match streams {
        // Behind the head, which comes before anything is computed.
        true => {
            let mut heard = Vec::new();
            while !String::from_utf8_lossy(&heard).contains("data: ") {
                let mut some = [0; 64];
                let read = client.read(&mut some).expect("it begins");
                assert!(read > 0, "it goes on");
                heard.extend(&some[..read]);
            }
        }
        false => server.wait_for("xcheck_generated_tokens_total", |tokens| tokens > 0.0),
    }
    PROMPTS * 200
}

#[test]
fn who_leaves_stops_the_computation() {
    for streams in [true, false] {
        let server = Server::tiny(&["--parallel", "2"]);
        let all = leave(&server, streams);
        server.wait_for("xcheck_sequences_total{outcome=\"dropped\"}", |dropped| dropped >= 1.0);
        server.wait_for("xcheck_sequences_running", |running| running == 0.0);
        assert_eq!(server.figure("xcheck_sequences_waiting"), 0.0);
        assert!(server.figure("xcheck_generated_tokens_total") < all as f64 / 2.0);
        let left = "xcheck_requests_total{route=\"/v1/completions\",status=\"499\"}";
        server.wait_for(left, |count| count == 1.0);
        // Nothing of it stands in the way of the next.
        let next = server.ask("/v1/completions", &json!({"prompt": [1, 5], "max_tokens": 2}));
        assert_eq!(next["usage"]["completion_tokens"], 2);
    }
}

/// The same figures of who stays: that they tell the two apart is what the test above rests on.
#[test]
fn who_stays_gets_all_of_it() {
    let server = Server::tiny(&["--parallel", "2"]);
    let prompts: Vec<Value> = (0..10).map(|index| json!([1, 3 + index])).collect();
    let asked = json!({"prompt": prompts, "max_tokens": 20, "ignore_eos": true});
    assert_eq!(server.ask("/v1/completions", &asked)["usage"]["completion_tokens"], 200);
    server.wait_for("xcheck_sequences_total{outcome=\"finished\"}", |finished| finished == 10.0);
    assert_eq!(server.figure("xcheck_generated_tokens_total"), 200.0);
    assert_eq!(server.figure("xcheck_sequences_total{outcome=\"dropped\"}"), 0.0);
}

#[cfg(unix)]
#[test]
fn a_server_that_is_told_to_end_does_so_in_peace() {
    assert_eq!(Server::tiny(&[]).terminate(), Some(0));
}

#[cfg(unix)]
#[test]
fn what_was_accepted_is_answered_before_the_end() {
    let server = Server::tiny(&[]);
    let url = server.url.clone();
    let asking = thread::spawn(move || {
        let body = json!({"prompt": [1, 5], "max_tokens": 250, "ignore_eos": true}).to_string();
        let request = ureq::post(format!("{url}/v1/completions")).header("content-type", "application/json");
        request.send(&body).expect("it is answered").body_mut().read_to_string().expect("text")
    });
    server.wait_for("xcheck_generated_tokens_total", |tokens| tokens > 0.0);
    assert_eq!(server.terminate(), Some(0));
    let answer: Value = serde_json::from_str(&asking.join().expect("it is answered")).expect("a document");
    assert_eq!(answer["usage"]["completion_tokens"], 250);
}
