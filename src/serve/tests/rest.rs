//! The examples of `docs/rest.md`, asked of a server in their order.

use super::*;

/// Has the answer all that the example says of it?
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
async fn the_examples_of_the_page_are_answered_as_it_says() {
    let server = Running::start().await;
    let blocks = crate::docs::blocks(include_str!("../../../docs/rest.md"), "http");
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
