//! Functions with which the tests send REST requests, and a test that sends the examples of `docs/rest.md` and
//! `docs/rest-machines.md` to a server, in the order of the docs.

use super::*;

impl Running {
    pub(super) async fn v1(&self, method: &str, path: &str, body: &Value) -> Answer {
        self.call(&self.operator(), method, path, body).await
    }

    pub(super) async fn v1_matching(&self, method: &str, path: &str, tag: &str, body: &Value) -> Answer {
        let bearer = format!("Bearer {}", self.operator());
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.ask(method, path, &[("Authorization", &bearer), ("If-Match", tag)], &text).await;
        openapi::agrees(method, path, body, &answer);
        answer
    }

    pub(super) fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    /// Repeats the request until the response satisfies the condition, because a changed file is read only in the
    /// next scan.
    pub(super) async fn shows(&self, path: &str, is_so: impl Fn(&Answer) -> bool) -> Answer {
        let began = std::time::Instant::now();
        loop {
            let answer = self.v1("GET", path, &Value::Null).await;
            if is_so(&answer) {
                return answer;
            }
            assert!(began.elapsed() < PATIENCE, "{}", answer.text());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Returns whether the response contains all fields of the example.
fn has(answer: &Value, example: &Value) -> bool {
    match (answer, example) {
        (Value::Object(answer), Value::Object(example)) => {
            example.iter().all(|(name, value)| answer.get(name).is_some_and(|found| has(found, value)))
        }
        (Value::Array(answer), Value::Array(example)) => {
            answer.len() == example.len() && answer.iter().zip(example).all(|(answer, example)| has(answer, example))
        }
        _ => answer == example,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rest_examples_receive_the_documented_responses() {
    let server = Running::start().await;
    let pages = concat!(include_str!("../../../../docs/rest.md"), include_str!("../../../../docs/rest-machines.md"));
    let blocks = testing::docs::code_blocks(pages, "http");
    assert!(blocks.len() >= 4);
    for block in blocks {
        let (request, answer) = block.split_once("\n\n").unwrap();
        let (head, body) = request.split_once('\n').unwrap_or((request, ""));
        let (method, path) = head.split_once(' ').unwrap();
        let body = if body.is_empty() { Value::Null } else { serde_json::from_str(body).unwrap() };
        let (status, example) = answer.split_once('\n').unwrap();
        let answered = server.v1(method, path, &body).await;
        assert_eq!(answered.status.to_string(), status, "{head}: {}", answered.text());
        let example = serde_json::from_str(example).unwrap();
        assert!(has(&answered.json(), &example), "{head}: {}", answered.text());
    }
}
