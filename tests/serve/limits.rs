//! How much one may ask for.

use std::thread;

use serde_json::{Value, json};

use super::server::Server;

const ROUTE: &str = "/v1/completions";

#[test]
fn more_than_the_queue_takes_is_refused_and_told_when_to_come_back() {
    let server = Server::tiny(&["--parallel", "1", "--queue", "1"]);
    let request = |index: u32| json!({"prompt": [1, 3 + index], "max_tokens": 200, "ignore_eos": true, "temperature": 0});
    let answers: Vec<_> = thread::scope(|scope| {
        let server = &server;
        let asked: Vec<_> =
            (0..24).map(|index| scope.spawn(move || server.post(ROUTE, &request(index)))).collect();
        asked.into_iter().map(|answer| answer.join().expect("it is answered")).collect()
    });
    let (mut taken, mut refused) = (0, 0);
    for (index, answer) in answers.iter().enumerate() {
        if answer.status == 200 {
            taken += 1;
            let alone = server.ask(ROUTE, &request(index as u32));
            assert_eq!(answer.document()["choices"], alone["choices"]);
        } else {
            refused += 1;
            answer.refused(429, None, &["waiting"]);
            assert_eq!(answer.retry_after.as_deref(), Some("1"));
        }
    }
    assert!(taken >= 2 && refused >= 1, "{taken} taken, {refused} refused");
    let prompts: Vec<Value> = (0..3).map(|index| json!([1, 3 + index])).collect();
    server.post(ROUTE, &json!({"prompt": prompts})).refused(400, Some("prompt"), &["3 prompts", "2"]);
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_computed() {
    let server =
        Server::tiny(&["--context", "32", "--max-tokens", "20", "--max-logprobs", "5", "--max-body", "2000"]);
    let fits = json!({"prompt": vec![5; 12], "max_tokens": 20, "logprobs": 5});
    assert_eq!(server.post(ROUTE, &fits).status, 200);
    let before = server.figure("xcheck_prompt_tokens_total");
    let context = ["13 prompt tokens and 20 tokens to generate", "32"];
    server.post(ROUTE, &json!({"prompt": vec![5; 13], "max_tokens": 20})).refused(
        400,
        Some("prompt"),
        &context,
    );
    server.post(ROUTE, &json!({"prompt": vec![5; 33], "max_tokens": 0})).refused(
        400,
        Some("prompt"),
        &["32"],
    );
    server.post(ROUTE, &json!({"prompt": [5], "max_tokens": 21})).refused(
        400,
        Some("max_tokens"),
        &["21", "20"],
    );
    server.post(ROUTE, &json!({"prompt": [5], "logprobs": 6})).refused(400, Some("logprobs"), &["0 to 5"]);
    server.post(ROUTE, &json!({"prompt": vec![5; 1000]})).refused(413, None, &["2000 bytes"]);
    server.post(ROUTE, &json!({"prompt": [5, 512]})).refused(
        400,
        Some("prompt"),
        &["512", "position 1", "vocabulary"],
    );
    server.post(ROUTE, &json!({"prompt": Vec::<u32>::new()})).refused(400, Some("prompt"), &["no tokens"]);
    assert_eq!(server.figure("xcheck_prompt_tokens_total"), before);
}
