//! A machine is switched by the server.

use super::*;
use testing::http::{Act, Request, Server as Controller};

fn controller() -> Controller {
    Controller::start(Vec::new(), |request: &Request| match request.method.as_str() {
        _ if request.authorization.is_none() => Act::says(401, ""),
        "GET" => {
            Act::says(200, r##"{"PowerState": "On", "Actions": {"#ComputerSystem.Reset": {"target": "/reset"}}}"##)
        }
        "PATCH" => Act::says(400, r#"{"error": {"message": "not now"}}"#),
        _ => Act::says(204, ""),
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_says_how_a_machine_is_switched() {
    let server = Running::start().await;
    let operator = std::fs::read_to_string(server.dir.path().join("operator.token")).unwrap();
    let power = async |token: &str, action: &str| {
        server.call(token, "POST", &format!("/v1/machine/{TWO}/power"), &json!({ "action": action })).await
    };
    let operator = operator.trim();
    let answer = power(operator, "on").await;
    assert!(
        answer.status == 409 && answer.text().contains("does not name a management controller"),
        "{}",
        answer.text()
    );

    let controller = controller();
    let url = controller.url("redfish/v1/Systems/1");
    let bmc = format!("bmc: {{url: '{url}', username: admin, password: hunter2}}\n");
    server.write("machines/two.yaml", &format!("id: {TWO}\nname: two\n{bmc}"));
    let began = std::time::Instant::now();
    let answer = loop {
        let answer = power(operator, "cycle").await;
        if answer.status != 409 {
            break answer;
        }
        assert!(began.elapsed() < PATIENCE, "{}", answer.text());
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!((answer.status, answer.json()), (200, json!({ "action": "cycle" })), "{}", answer.text());
    let last = controller.requests().pop().unwrap();
    assert_eq!((last.line(), last.body), ("POST /reset".to_owned(), r#"{"ResetType":"ForceRestart"}"#.to_owned()));
    server.heard("two: switched off and on, as requested by 127.0.0.1").await;

    let answer = power(operator, "pxe").await;
    assert!(answer.status == 502 && answer.text().contains("not now"), "{}", answer.text());
    assert_eq!(power("wrong", "off").await.status, 401);
    assert_eq!(power(operator, "melt").await.status, 400);
    assert!(!server.heard.text().contains("hunter2"));
}
