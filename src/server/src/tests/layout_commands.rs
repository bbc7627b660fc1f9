//! `drophammer layout`, `image`, `template` and `size` against a server.

use super::*;
use clap::Parser;
use common::command_outcome::CommandOutcome;
use drophammer::cli::{Cli, CliCommand, ImageArgs, ImageCommand};

impl Running {
    async fn command(&self, arguments: &[&str]) -> Result<CommandOutcome> {
        let url = format!("http://{}", self.address);
        let token = self.dir.path().join("operator.token").display().to_string();
        let with = ["--server", &url, "--token-file", &token];
        let all = ["drophammer"].iter().chain(arguments).chain(&with);
        let command = Cli::try_parse_from(all).unwrap_or_else(|error| panic!("{error}")).command;
        let run = move || match command {
            CliCommand::Layout(options) => drophammer::server_commands::layouts::run_layout_command(&options),
            CliCommand::Image(ImageArgs { command: ImageCommand::List(options) }) => {
                drophammer::server_commands::images::list_images(&options)
            }
            CliCommand::Image(ImageArgs { command: ImageCommand::Modify(options) }) => {
                drophammer::server_commands::images::modify_image(&options)
            }
            CliCommand::Image(ImageArgs { command: ImageCommand::Show(options) }) => {
                drophammer::server_commands::images::show_image(&options)
            }
            CliCommand::Image(ImageArgs { command: ImageCommand::Apply(options) }) => {
                drophammer::server_commands::images::apply_image(&options)
            }
            CliCommand::Image(ImageArgs { command: ImageCommand::Delete(options) }) => {
                drophammer::server_commands::images::delete_image(&options)
            }
            CliCommand::Template(options) => drophammer::server_commands::templates::run_template_command(&options),
            CliCommand::Size(options) => drophammer::server_commands::sizes::run_size_command(&options),
            _ => panic!(),
        };
        tokio::task::spawn_blocking(run).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layout_and_image_commands_change_the_directory() {
    let server = Running::start().await;
    let good = async |arguments: &[&str]| match server.command(arguments).await {
        Ok(outcome) => outcome == CommandOutcome::Good,
        Err(error) => panic!("{arguments:?}: {error}"),
    };
    let file = server.dir.path().join("devel.yaml");
    let path = file.display().to_string();
    std::fs::write(&file, LAYOUT.replace("id: default", "id: devel")).unwrap();
    assert!(good(&["layout", "list"]).await && good(&["layout", "ls", "--json"]).await);
    assert!(good(&["layout", "create", &path]).await && !good(&["layout", "create", &path]).await);
    assert!(server.file("layouts/devel.yaml").starts_with("id: devel\n"));
    server.write("layouts/devel.yaml", &format!("# mine\n{}", server.file("layouts/devel.yaml")));
    std::fs::write(&file, LAYOUT.replace("id: default", "id: devel\ndescription: changed")).unwrap();
    assert!(good(&["layout", "apply", &path]).await);
    let text = server.file("layouts/devel.yaml");
    assert!(text.starts_with("# mine\nid: devel\n") && text.contains("description: changed"), "{text}");
    assert!(good(&["layout", "show", "devel"]).await && good(&["layout", "show", "devel", "--json"]).await);
    assert!(good(&["layout", "delete", "devel"]).await && !good(&["layout", "delete", "devel"]).await);
    assert!(!good(&["layout", "delete", "default"]).await, "it is in use");
    std::fs::write(&file, "id: devel\ndisks: 7\n").unwrap();
    assert!(!good(&["layout", "apply", &path]).await);

    assert!(good(&["image", "list"]).await && good(&["image", "ls", "--all", "--json"]).await);
    assert!(good(&["image", "modify", "a/b", "--hidden", "true", "--blacklisted", "true"]).await);
    assert_eq!(server.file("image-states.yaml"), "hidden: [a/b]\nblacklisted: [a/b]\n");
    assert!(good(&["image", "modify", "a/b", "--hidden", "false", "--json"]).await);
    assert!(!good(&["image", "modify", "a/b"]).await, "no change is specified");
    let states = server.v1("GET", "/v1/image-states", &Value::Null).await.json();
    assert_eq!(states, json!({"hidden": [], "blacklisted": ["a/b"]}));

    let spare = json!({"id": "debian-14", "url": "http://127.0.0.1:9/debian-14.tar", "digest": format!("sha256:{}", "0".repeat(64))});
    assert_eq!(server.v1("PUT", "/v1/image", &spare).await.status, 201);
    assert!(good(&["image", "delete", "debian-14"]).await && !good(&["image", "delete", "debian-14"]).await);
    let images = server.v1("GET", "/v1/image", &Value::Null).await.json();
    let ids: Vec<&str> = images.as_array().unwrap().iter().filter_map(|image| image["id"].as_str()).collect();
    assert!(!ids.is_empty() && !ids.contains(&"debian-14"), "{ids:?}");
    assert!(!good(&["image", "delete", ids[0]]).await, "it is in use");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn templates_sizes_and_images_are_listed_and_shown() {
    let server = Running::start().await;
    let size = json!({"id": "c1-small", "constraints": [{"type": "cores", "min": 4, "max": 4}]});
    assert_eq!(server.v1("PUT", "/v1/size", &size).await.status, 201);
    std::fs::create_dir(server.dir.path().join("deploy-templates")).unwrap();
    let template = json!({"name": "CUSTOM_LOCK", "steps": [{"interface": "deploy", "step": "lock_foreign_disks", "args": {}, "priority": 0}]});
    let created = server.v1("POST", "/v1/deploy-templates", &template).await;
    assert_eq!(created.status, 201);
    for (arguments, expected) in [
        (&["size", "list", "-o", "name"][..], true),
        (&["size", "show", "c1-small"], true),
        (&["size", "show", "c1-large"], false),
        (&["template", "ls", "--json"], true),
        (&["template", "show", "CUSTOM_LOCK"], true),
        (&["template", "show", "CUSTOM_OTHER"], false),
        (&["image", "show", "debian-12"], true),
        (&["image", "show", "debian-99"], false),
        (&["image", "list", "--filter", "state=hidden"], true),
        (&["image", "list", "--filter", "digest=0"], false),
    ] {
        let outcome = server.command(arguments).await.unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
        assert_eq!(outcome == CommandOutcome::Good, expected, "{arguments:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sizes_templates_and_images_are_created_updated_and_deleted() {
    let server = Running::start().await;
    let good = async |arguments: &[&str]| match server.command(arguments).await {
        Ok(outcome) => outcome == CommandOutcome::Good,
        Err(error) => panic!("{arguments:?}: {error}"),
    };
    let file = |name: &str, text: &str| {
        let path = server.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let size = file("c1.yaml", "id: c1\nconstraints: [{type: cores, min: 1, max: 4}]\n");
    assert!(good(&["size", "apply", &size]).await && !good(&["size", "create", &size]).await);
    assert!(server.file("sizes/c1.yaml").contains("max: 4"), "{}", server.file("sizes/c1.yaml"));
    let size = file("c1.yaml", "id: c1\ndescription: large\nconstraints: [{type: cores, min: 1, max: 8}]\n");
    assert!(good(&["size", "apply", &size]).await && server.file("sizes/c1.yaml").contains("max: 8"));
    let bad = file("bad.yaml", "id: c1\nconstraints: 5\n");
    assert!(!good(&["size", "apply", &bad]).await && server.file("sizes/c1.yaml").contains("description: large"));
    assert!(good(&["size", "delete", "c1"]).await && !good(&["size", "rm", "c1"]).await);

    std::fs::create_dir(server.dir.path().join("deploy-templates")).unwrap();
    let step = |priority| format!("{{interface: deploy, step: lock_foreign_disks, args: {{}}, priority: {priority}}}");
    let template = file("t.yaml", &format!("name: CUSTOM_LOCK\nsteps: [{}]\n", step(0)));
    assert!(good(&["template", "add", &template]).await && !good(&["template", "create", &template]).await);
    let template = file("t.yaml", &format!("name: CUSTOM_LOCK\nsteps: [{}]\nextra: {{a: 1}}\n", step(95)));
    assert!(
        good(&["template", "apply", &template]).await && good(&["template", "show", "CUSTOM_LOCK", "-o", "json"]).await
    );
    let shown = server.v1("GET", "/v1/deploy-templates/CUSTOM_LOCK", &Value::Null).await.json();
    assert_eq!(shown["steps"][0]["priority"], 95, "{shown}");
    let folder = std::fs::read_dir(server.dir.path().join("deploy-templates")).unwrap();
    let files: Vec<String> = folder.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap()).collect();
    assert!(files.len() == 1 && files[0].contains("extra:"), "{files:?}");
    assert!(good(&["template", "delete", "CUSTOM_LOCK"]).await && !good(&["template", "delete", "CUSTOM_LOCK"]).await);

    let image = file("i.yaml", "id: debian-14\nurl: http://h/i.tar\n");
    assert!(good(&["image", "apply", &image]).await);
    let image = file("i.yaml", "id: debian-14\nurl: http://h/i.tar\nname: Debian 14\n");
    assert!(good(&["image", "apply", &image]).await && server.file("images/debian-14.yaml").contains("Debian 14"));
    let image = file("i.yaml", "id: debian-14\nurl: oci://h/i:1\npull_secret: {username: u, password: p}\n");
    assert!(!good(&["image", "apply", &image]).await);
}
