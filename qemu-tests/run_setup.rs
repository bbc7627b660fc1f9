//! Everything that a run offers to the machine: layout, image, machine file, ramdisk, and the server with these files.

use crate::file_control_plane::FleetFiles;
use crate::host_tools::{Context, Result, write};
use crate::proxy::Proxy;
use crate::qemu_machine::FAST_BOOT;
use crate::registry::Registry;
use crate::scenario_run::RunContext;
use crate::server::{self, Server};
use crate::tls_endpoints::{self, TlsEndpoints};
use crate::{image_creation, ramdisk_archives};
use model::architecture::Architecture;
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

impl RunContext<'_> {
    /// Writes the files of the server, and returns the registry if the image is in one. The server's database is
    /// preserved between runs. A reinstall does not change the machine file, because the order contains the image. A
    /// machine that is adopted gets its file in this run.
    fn write_state(&self, state: &Path, base: &str) -> Result<Option<Registry>> {
        let layout = self.read_layout()?;
        let id = layout_id(&layout);
        server::write_object(state, "layouts", id, &layout)?;
        if let Some(template) = &self.run.template {
            server::write_object(state, "deploy-templates", "template", template)?;
        }
        let image = self.image_id();
        let original = match &self.run.image.file {
            Some(file) => self.find_file(file, self.artifacts),
            None => self.artifacts.join(image_creation::image_path(self.run.image.system, &self.scenario.machine)),
        };
        let registry = image_creation::offer_image(&self.run.image, &original, &image, state, base)?;
        self.write_definitions(state, &image)?;
        match &self.run.reinstall {
            Some(_) if !self.run.adopted => self.change_machine_file(state)?,
            _ => self.write_machine_file(state, &image, id)?,
        }
        Ok(registry)
    }

    /// Writes the OS definitions. A definition with neither a file `image` nor a program `create` gets the image of the
    /// run.
    fn write_definitions(&self, state: &Path, image: &str) -> Result<()> {
        for (name, files) in &self.run.os {
            let folder = state.join("os").join(name);
            fs::create_dir_all(&folder).context(folder.display())?;
            if !files.contains_key("create") {
                write(&folder.join("image"), image)?;
            }
            for (file, text) in files {
                let path = folder.join(file);
                let mode = if text.starts_with("#!") { 0o755 } else { 0o644 };
                write(&path, text)?;
                fs::set_permissions(&path, Permissions::from_mode(mode)).context(path.display())?;
            }
        }
        Ok(())
    }

    /// Returns the layout of the run; empty if a template generates the layout.
    ///
    /// # Errors
    /// Fails if the file of the layout cannot be read.
    pub fn read_layout(&self) -> Result<String> {
        match (&self.run.layout, &self.run.layout_file) {
            (Some(text), _) => Ok(text.clone()),
            (None, Some(file)) => {
                let path = self.find_file(file, Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")));
                fs::read_to_string(&path).context(path.display())
            }
            (None, None) => Ok(String::new()),
        }
    }

    fn write_machine_file(&self, state: &Path, image: &str, layout: &str) -> Result<()> {
        let mut allocation = json!({
            "id": self.allocation, "hostname": "machine", "project": "scenarios", "image": image, "filesystemlayout": layout,
            "ssh_pub_keys": [], "user_data": "",
        });
        for (key, value) in &self.run.allocation {
            allocation[key] = value.clone();
        }
        if let (Some(fields), true) = (allocation.as_object_mut(), self.run.allocation.contains_key("os")) {
            fields.remove("image");
        }
        let macs = self.scenario.runs.first().map(|run| run.macs.clone()).filter(|macs| !macs.is_empty());
        let mut machine = json!({
            "id": self.chassis.uuid, "name": self.scenario.name, "macs": macs.unwrap_or(vec![self.chassis.mac.clone()]),
            "size": "c1-large-x86", "allocation": allocation,
        });
        for (key, value) in &self.run.machine_file {
            machine[key] = value.clone();
        }
        // A JSON document is also a YAML document.
        server::write_object(state, "machines", "machine", format!("{machine:#}\n"))
    }

    /// Changes the machine file in addition to the order, as the run specifies.
    fn change_machine_file(&self, state: &Path) -> Result<()> {
        if self.run.machine_file.is_empty() && self.run.allocation.is_empty() {
            return Ok(());
        }
        let path = state.join("machines/machine.yaml");
        let text = fs::read_to_string(&path).context(path.display())?;
        let mut machine: Value = serde_json::from_str(&text).context(path.display())?;
        for (key, value) in &self.run.machine_file {
            machine[key] = value.clone();
        }
        for (key, value) in &self.run.allocation {
            machine["allocation"][key] = value.clone();
        }
        server::write_object(state, "machines", "machine", format!("{machine:#}\n"))
    }

    /// Returns the folder with the kernel and ramdisk that QEMU loads. The server's folder contains the files for all
    /// architectures.
    pub fn kernel_files(&self) -> PathBuf {
        match self.scenario.machine.architecture {
            Architecture::Amd64 => self.boot_files(),
            Architecture::Arm64 => self.artifacts.join(self.scenario.machine.artifact("ramdisk")),
        }
    }

    /// Returns the folder with the kernel and ramdisk of this run.
    pub fn boot_files(&self) -> PathBuf {
        match self.run.before_agent.is_some() || self.scenario.machine.tls {
            false => self.artifacts.join("ramdisk"),
            true => self.chassis.folder.join(format!("{}-boot", self.label)),
        }
    }

    /// Returns the folder with kernel and ramdisk. Creates it if this scenario adds a script or trusted certificates to
    /// the ramdisk.
    fn boot_folder(&self) -> Result<PathBuf> {
        let folder = self.boot_files();
        let mut files: Vec<(&str, String)> = Vec::new();
        files.extend(self.run.before_agent.iter().map(|script| ("before-agent", script.clone())));
        if self.scenario.machine.tls {
            let authority = tls_endpoints::testdata_path("ca.pem");
            let text = fs::read_to_string(&authority).context(authority.display())?;
            files.push((tls_endpoints::RAMDISK_AUTHORITIES, text));
        }
        if files.is_empty() {
            return Ok(folder);
        }
        let built = self.artifacts.join("ramdisk");
        fs::create_dir_all(&folder).context(folder.display())?;
        for name in ["vmlinuz", "vmlinux", "drophammer"] {
            let from = built.join(name);
            fs::copy(&from, folder.join(name)).context(from.display())?;
        }
        for name in ["initrd", "quick"] {
            let whole = ramdisk_archives::with_files(self.chassis.folder, &built.join(name), &files)?;
            write(&folder.join(name), whole)?;
        }
        // The archive is appended as in scripts/build-ramdisk.
        let part = built.join("luks");
        let mut whole = fs::read(folder.join("initrd")).context("initrd")?;
        whole.extend(fs::read(&part).context(part.display())?);
        write(&folder.join("initrd-luks"), whole)?;
        Ok(folder)
    }

    /// Returns the path of a file: next to the scenario if it exists there, and otherwise in `or`.
    fn find_file(&self, file: &Path, or: &Path) -> PathBuf {
        let beside = self.scenario.folder.join(file);
        if beside.exists() { beside } else { or.join(file) }
    }

    /// Starts the server with everything that this run offers, and a proxy in front of it.
    ///
    /// # Errors
    /// Fails if the server does not start.
    pub fn start_server(&self, state: &Path) -> Result<(Server, Proxy)> {
        let proxy = Proxy::start(&self.run.image.cut_connection_at)?;
        proxy.set_response_fault(self.run.image.fault, self.run.image.cut_for_ever);
        fs::create_dir_all(state).context(state.display())?;
        if self.run.forget {
            server::remove_database(state)?;
        }
        let ends = self.scenario.machine.tls.then(|| TlsEndpoints::start(proxy.port)).transpose()?;
        let base = ends.as_ref().map_or_else(|| format!("http://10.0.2.2:{}", proxy.port), TlsEndpoints::url);
        if let Some(registry) = self.write_state(state, &base)? {
            proxy.set_registry(registry);
        }
        let cmdline = format!("{FAST_BOOT} {}", self.scenario.machine.kernel_arguments);
        let server = Server::start(state, &self.boot_folder()?, cmdline.trim(), ends)?;
        server.connect_proxy(&proxy)?;
        if let Some(fleet) = self.run.fleet {
            proxy.set_fleet(FleetFiles::create_files(
                fleet,
                proxy.port,
                state,
                self.machine_id(),
                server.share_messages(),
            )?);
        }
        Ok((server, proxy))
    }
}

/// Returns the id of a layout: the text after `id:` in a separate line. The layout is not parsed, because it may be
/// invalid.
fn layout_id(layout: &str) -> &str {
    let id = layout.lines().find_map(|line| line.strip_prefix("id:")).unwrap_or("nameless");
    id.split('#').next().unwrap_or_default().trim().trim_matches(['"', '\''])
}
