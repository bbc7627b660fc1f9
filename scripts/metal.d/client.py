"""Tests `drophammer serve` with metal-stack's Python client: client.py PROGRAM FOLDER.

Every call of the client is made. A served call must be decoded, with every field of its model present and of the model's type. Every other
call must be refused with an error that the client decodes, and must not change a file. See ../lib.d/client_site.py for the server.
"""

import datetime
import inspect
import os
import re
import socket
import sys
import tempfile
from types import SimpleNamespace

import metal_python.api
from metal_python import models
from metal_python.driver import Driver
from metal_python.rest import ApiException

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib.d"))
from client_site import INSTALLED, LARGE, LOCKED, SMALL, UNSEEN, DESCRIBED, Site, mac, machine_id  # noqa: E402

GIB = 1 << 30
NATIVE = {"str": str, "int": int, "bool": bool, "float": float, "datetime": datetime.datetime}
ALLOCATION = "0b5b3a3c-8ed1-4c9a-9a0e-000000000001"
# Calls that the server has.
SERVED = {
    "FilesystemlayoutApi": {"create_filesystem_layout", "delete_filesystem_layout", "get_filesystem_layout", "list_filesystem_layouts",
                            "match_filesystem_layout", "try_filesystem_layout", "update_filesystem_layout"},
    "ImageApi": {"create_image", "delete_image", "find_image", "list_images", "update_image"},
    "MachineApi": {"allocate_machine", "find_machine", "find_machines", "free_machine", "list_machines", "reinstall_machine"},
    "SizeApi": {"create_size", "delete_size", "find_size", "list_sizes", "suggest", "update_size"},
}


def find_type_errors(value, kind, path):
    """Returns the fields of a decoded response whose values do not have the types of the client's models."""
    if value is None:
        return []
    if kind.startswith("list["):
        return [error for index, one in enumerate(value) for error in find_type_errors(one, kind[5:-1], f"{path}[{index}]")]
    if kind.startswith("dict("):
        return [error for name, one in value.items() for error in find_type_errors(one, kind[:-1].split(", ")[1], f"{path}.{name}")]
    if kind in NATIVE:
        return [] if type(value) is NATIVE[kind] else [f"{path} is {value!r}, not {kind}"]
    fields = getattr(models, kind).swagger_types.items()
    return [error for name, field in fields for error in find_type_errors(getattr(value, name), field, f"{path}.{name}")]


class Judge:
    """The client, the server and the results so far."""

    def __init__(self, site):
        self.site, self.passed, self.failed = site, 0, 0
        self.client = Driver(f"http://127.0.0.1:{site.port}", site.token, None).client
        self.done = {name: set() for name in SERVED}

    def report(self, what, problem):
        self.passed, self.failed = self.passed + (not problem), self.failed + bool(problem)
        print(f"{what} ... {'FAILED: ' + problem if problem else 'ok'}", flush=True)

    def method(self, call):
        api, name = call.split(".")
        return getattr(getattr(metal_python.api, api)(self.client), name)

    def served(self, call, *arguments, note="", check=lambda answer: True, **options):
        """Makes a call that must be answered, decoded and as `check` requires. Returns the decoded response."""
        api, name = call.split(".")
        self.done[api].add(name)
        kind = re.search(r"response_type='(.*?)'", inspect.getsource(getattr(getattr(metal_python.api, api), f"{name}_with_http_info")))[1]
        answer, problem = None, ""
        try:
            answer = self.method(call)(*arguments, **options)
            errors = find_type_errors(answer, kind, kind)
            problem = "; ".join(errors[:3]) or ("" if check(answer) else f"unexpected: {answer}")
        except ApiException as error:
            problem = f"{error.status} {error.reason}: {error.body}"
        except (ValueError, TypeError, AttributeError) as error:
            problem = f"not decoded: {error!r}"
        self.report(f"{call}{note and ' ' + note}", problem)
        return answer

    def refused(self, call, arguments, statuses, words="", note=""):
        """Makes a call that must be refused with one of the statuses, without a change of the operator's files."""
        before, problem = self.site.files(), ""
        try:
            problem = f"answered: {self.method(call)(*arguments)}"
        except ApiException as error:
            try:
                body = self.client.deserialize(SimpleNamespace(data=error.body), "HttperrorsHTTPErrorResponse")
                if error.status not in statuses or body.statuscode != error.status or words not in body.message:
                    problem = f"{error.status}: {body.message!r}; expected {statuses} and {words!r}"
            except (ValueError, TypeError) as decoding:
                problem = f"{error.status} {error.body!r} is not decoded: {decoding!r}"
        if self.site.files() != before:
            problem += " and a file was changed"
        self.report(f"refused: {call}{note and ' ' + note}", problem)

    def check(self, what, is_so, found=""):
        self.report(what, "" if is_so else f"found {found}")


def judge_layouts(judge):
    model, api = models, "FilesystemlayoutApi"
    by_id = lambda id: lambda layout: layout.id == id
    judge.served(f"{api}.list_filesystem_layouts", check=lambda all: [one.id for one in all] == ["default", "full"])
    default = judge.served(f"{api}.get_filesystem_layout", "default", check=lambda one: one.disks[0].partitions[1].gpttype == "8300")
    full = judge.served(f"{api}.get_filesystem_layout", "full", note="with arrays and volumes",
                        check=lambda one: (one.raid[0].level, one.raid[0].spares, one.logicalvolumes[0].lvmtype) == ("1", 0, "raid1"))
    fields = ["constraints", "description", "disks", "filesystems", "id", "logicalvolumes", "name", "raid", "volumegroups"]
    copied = lambda kind, layout: kind(**{field: getattr(layout, field) for field in fields})
    before = judge.site.text("layouts/default.yaml")
    judge.served(f"{api}.update_filesystem_layout", copied(model.V1FilesystemLayoutUpdateRequest, default), note="with its own response", check=by_id("default"))
    judge.check("the file of the layout is unchanged", judge.site.text("layouts/default.yaml") == before, judge.site.text("layouts/default.yaml"))
    default.description = "of the rack"
    judge.served(f"{api}.update_filesystem_layout", copied(model.V1FilesystemLayoutUpdateRequest, default), check=lambda one: one.description == "of the rack")
    written = judge.site.text("layouts/default.yaml")
    judge.check("comments are preserved", "# of the rack" in written and "{number: 2, label: root, size: 0}" in written, written)
    full.id = "third"
    judge.served(f"{api}.create_filesystem_layout", copied(model.V1FilesystemLayoutCreateRequest, full), check=by_id("third"))
    judge.refused(f"{api}.create_filesystem_layout", [copied(model.V1FilesystemLayoutCreateRequest, full)], [409], "already exists")
    default.id = "colliding"
    judge.refused(f"{api}.create_filesystem_layout", [copied(model.V1FilesystemLayoutCreateRequest, default)], [400, 409, 422], note="with colliding constraints")
    default.id = "absent"
    judge.refused(f"{api}.update_filesystem_layout", [copied(model.V1FilesystemLayoutUpdateRequest, default)], [404], "no filesystemlayout with id")
    judge.served(f"{api}.delete_filesystem_layout", "third", check=by_id("third"))
    judge.refused(f"{api}.delete_filesystem_layout", ["third"], [404], "no filesystemlayout with id")
    judge.refused(f"{api}.delete_filesystem_layout", ["default"], [422], "is in use by machines:[", note="that is in use")
    judge.refused(f"{api}.get_filesystem_layout", ["third"], [404], "no filesystemlayout with id")
    ask = lambda size, image: model.V1FilesystemLayoutTryRequest(size=size, image=image)
    judge.served(f"{api}.try_filesystem_layout", ask("c1", "debian-12.0.20260101"), check=by_id("default"))
    judge.refused(f"{api}.try_filesystem_layout", [ask("c9", "debian-12.0.20260101")], [422], "could not find a matching filesystemLayout")
    match = lambda number, layout: model.V1FilesystemLayoutMatchRequest(machine=machine_id(number), filesystemlayout=layout)
    judge.served(f"{api}.match_filesystem_layout", match(LARGE, "default"), check=by_id("default"))
    judge.refused(f"{api}.match_filesystem_layout", [match(SMALL, "default")], [422], "is not big enough", note="on a small disk")
    judge.refused(f"{api}.match_filesystem_layout", [match(LARGE, "full")], [422], "/dev/sdb does not exist", note="without a second disk")
    judge.refused(f"{api}.match_filesystem_layout", [match(UNSEEN, "default")], [422], "has not registered")


def judge_images(judge):
    model, api, new = models, "ImageApi", "ubuntu-26.4.20261101"
    never = lambda image: image.expiration_date.year == 9999
    judge.served(f"{api}.list_images", check=lambda images: len(images) == 2 and all(map(never, images)))
    judge.served(f"{api}.list_images", note="with usage", show_usage=True, check=lambda all: all[0].usedby == [machine_id(INSTALLED), machine_id(DESCRIBED)])
    judge.served(f"{api}.find_image", "debian-12.0.20260101", check=lambda image: image.name == "Debian 12" and image.url.startswith("http://"))
    judge.refused(f"{api}.find_image", ["debian-1.0"], [404], "no image with id")
    url = "https://mirror.example.org/ubuntu.tar.zst"
    judge.served(f"{api}.create_image", model.V1ImageCreateRequest(id=new, url=url, name="Ubuntu"), check=lambda image: image.id == new and never(image))
    judge.refused(f"{api}.create_image", [model.V1ImageCreateRequest(id=new, url=url)], [409], "entity already exists")
    for field, value in [("classification", "supported"), ("features", ["machine"]), ("expiration_date", datetime.datetime(2027, 1, 1))]:
        request = model.V1ImageCreateRequest(id="ubuntu-26.10.20261101", url=url, **{field: value})
        judge.refused(f"{api}.create_image", [request], [400], model.V1ImageCreateRequest.attribute_map[field], note=f"with {field}")
    found = judge.served(f"{api}.find_image", new, note="that was created", check=lambda image: image.url == url)
    change = lambda date, **fields: model.V1ImageUpdateRequest(id=new, expiration_date=date, **fields)
    judge.served(f"{api}.update_image", change(found.expiration_date, description="of the rack"), check=lambda image: image.description == "of the rack")
    judge.check("the file of the image has no date", judge.site.text(f"images/{new}.yaml").count("\n") == 4 and "9999" not in judge.site.text(f"images/{new}.yaml"))
    date = datetime.datetime(2027, 1, 1, tzinfo=datetime.timezone.utc)
    judge.refused(f"{api}.update_image", [change(date, name="x")], [400], "images do not expire", note="with another date")
    judge.served(f"{api}.delete_image", new, check=lambda image: image.id == new)
    judge.refused(f"{api}.delete_image", [new], [404], "no image with id")
    judge.refused(f"{api}.delete_image", ["debian-12.0.20260101"], [422], "is in use by machines:[", note="that is in use")


def judge_sizes(judge):
    model, api = models, "SizeApi"
    limit = lambda kind, least, most: model.V1SizeConstraint(type=kind, min=least, max=most)
    judge.served(f"{api}.list_sizes", check=lambda all: [size.id for size in all] == ["c1"] and all[0].labels == {})
    judge.served(f"{api}.find_size", "c1", check=lambda size: size.constraints[0].type == "cores")
    judge.refused(f"{api}.find_size", ["c3"], [404], "no size with id")
    constraints = [limit("cores", 8, 16), limit("memory", 1, 4 * GIB), limit("storage", 0, 1024 * GIB)]
    request = model.V1SizeCreateRequest(id="c3", name="large", constraints=constraints)
    judge.served(f"{api}.create_size", request, check=lambda size: size.id == "c3")
    judge.refused(f"{api}.create_size", [request], [409], "entity already exists")
    request = model.V1SizeCreateRequest(id="c4", constraints=constraints)
    judge.refused(f"{api}.create_size", [request], [400], "overlaps with", note="that overlaps")
    request = model.V1SizeCreateRequest(id="c4", constraints=[model.V1SizeConstraint(type="gpu", identifier="*", min=1, max=2)])
    judge.refused(f"{api}.create_size", [request], [400, 422], note="with GPUs")
    judge.served(f"{api}.update_size", model.V1SizeUpdateRequest(id="c3", description="of the rack"), check=lambda size: size.description == "of the rack")
    judge.refused(f"{api}.update_size", [model.V1SizeUpdateRequest(id="c9", description="x")], [404], "no size with id")
    judge.served(f"{api}.suggest", model.V1SizeSuggestRequest(machine_id=machine_id(LARGE)),
                 check=lambda all: sorted(one.type for one in all) == ["cores", "memory", "storage"])
    judge.refused(f"{api}.suggest", [model.V1SizeSuggestRequest(machine_id=machine_id(UNSEEN))], [400, 404, 422], note="for an unregistered machine")
    judge.served(f"{api}.delete_size", "c3", check=lambda size: size.id == "c3")
    judge.refused(f"{api}.delete_size", ["c3"], [404], "no size with id")


def judge_machines(judge):
    api = "MachineApi"
    ids = lambda *numbers: lambda all: sorted(one.id for one in all) == [machine_id(number) for number in numbers]
    all = judge.served(f"{api}.list_machines", check=ids(1, 2, 3, 4, 5, 6))
    one, four, five, six = all[0], all[3], all[4], all[5]
    judge.check("an installed machine", (one.allocation.succeeded, one.size.name, one.events.log[0].event) == (True, "small", "Installing"), one)
    judge.check("its hardware", (one.hardware.nics[0].identifier, one.hardware.disks[0].size) == (mac(1), 21 * GIB), one.hardware)
    judge.check("its agent", one.state.metal_hammer_version == "drophammer 0.1.0" and one.allocation.created.year > 2025, one.state)
    judge.check("secrets are not shown", not one.allocation.user_data and "hunter2" not in str(one), one.allocation)
    judge.check("a machine that has not registered", (four.hardware.disks, four.bios.vendor, four.allocation) == ([], "", None), four)
    judge.check("a locked machine", (five.state.value, five.state.description) == ("LOCKED", "repair"), five.state)
    given = six.allocation
    judge.check("networks of a machine", [(one.networkid, one.asn, one.vrf, one.nat) for one in given.networks] == [("internet", 4200000001, 0, False), ("", 0, 7, False)], given)
    judge.check("servers and rules", (given.role, given.dns_servers[0].ip, given.firewall_rules.egress[0].protocol, given.firewall_rules.ingress[0].ports)
                == ("firewall", "10.0.0.53", "tcp", []), given)
    judge.check("a size without a file", (six.size.id, six.size.constraints) == ("unlisted", []), six.size)
    judge.served(f"{api}.find_machine", machine_id(INSTALLED), check=lambda found: found.id == one.id and found.allocation.image.id == "debian-12.0.20260101")
    judge.served(f"{api}.find_machine", machine_id(UNSEEN), note="that has not registered", check=lambda found: found.name == "four")
    judge.refused(f"{api}.find_machine", [machine_id(99)], [404], "no machine with id")
    find = models.V1MachineFindRequest
    for note, query, numbers in [
        ("all", find(), (1, 2, 3, 4, 5, 6)),
        ("by id", find(id=machine_id(1)), (1,)),
        ("by name", find(name="two"), (2,)),
        ("by size", find(sizeid="c2"), (2, 3, 4, 5)),
        ("by image", find(allocation_image_id="debian-12.0.20260101", allocation_succeeded=True), (1,)),
        ("by role", find(allocation_role="machine"), (1,)),
        ("by MAC", find(nics_mac_addresses=[mac(3)]), (3,)),
        ("by lock", find(state_value="LOCKED"), (5,)),
        ("by project", find(allocation_project="none"), ()),
    ]:
        judge.served(f"{api}.find_machines", query, note=note, check=ids(*numbers))
    judge.refused(f"{api}.find_machines", [find(rackid="r")], [400], "cannot be searched by \"rackid\"")


def allocation_request(**fields):
    usual = {"partitionid": "rack", "projectid": "p", "sizeid": "c2", "ssh_pub_keys": ["ssh-ed25519 AAAA"], "imageid": "debian-12.0.20260101"}
    return models.V1MachineAllocateRequest(**(usual | fields))


def judge_allocations(judge):
    api, id = "MachineApi", machine_id(LARGE)
    allocate, request = f"{api}.allocate_machine", allocation_request
    network = lambda id, acquire: models.V1MachineAllocationNetwork(networkid=id, autoacquire=acquire)
    for note, fields, statuses, words in [
        ("of an allocated machine", {"uuid": machine_id(INSTALLED), "sizeid": "c1"}, [422], "already allocated"),
        ("of a locked machine", {"uuid": machine_id(LOCKED)}, [422], "locked: repair"),
        ("of an unknown machine", {"uuid": machine_id(99)}, [404], "no machine with id"),
        ("of another size", {"uuid": id, "sizeid": "c1"}, [422], "does not have the requested size"),
        ("of a size without machines", {"sizeid": "c9"}, [422], "no machine available"),
        ("with an unknown image", {"uuid": id, "imageid": "debian-99.0"}, [422], "imageid: "),
        ("with an unknown layout", {"uuid": id, "filesystemlayoutid": "none"}, [422], "filesystemlayoutid: "),
        ("on a small disk", {"uuid": machine_id(SMALL)}, [422], "is not big enough"),
        ("with a network that the machine lacks", {"uuid": id, "networks": [network("private", True)]}, [422], "network \"private\" is not in the file"),
        ("with a layout for two disks", {"filesystemlayoutid": "full"}, [422], "/dev/sdb does not exist"),
        ("with tags", {"uuid": id, "tags": ["t"]}, [400], "\"tags\" is not supported"),
        ("with addresses", {"uuid": id, "ips": ["10.0.0.1"]}, [400], "\"ips\" is not supported"),
    ]:
        judge.refused(allocate, [request(**fields)], statuses, words, note)
    before = judge.site.text("machines/three.yaml")
    wish = {"hostname": "h3", "name": "of a tenant", "dns_servers": [models.V1DNSServer("10.0.0.53")], "ntp_servers": [models.V1NTPServer("ntp.example.org")]}
    as_asked = lambda one: (one.allocation.hostname, one.allocation.project, one.allocation.dns_servers[0].ip) == ("h3", "p", "10.0.0.53")
    judge.served(allocate, request(uuid=id, user_data="c2VjcmV0", **wish), check=as_asked)
    judge.check("the allocation is in the machine file", "hostname: h3" in judge.site.text("machines/three.yaml"))
    judge.served(f"{api}.free_machine", id, check=lambda one: one.id == id and one.allocation is None)
    judge.check("the file is as before", judge.site.text("machines/three.yaml") == before, judge.site.text("machines/three.yaml"))
    networks = [network("storage", False), network("internet", True)]
    judge.served(allocate, request(networks=networks), note="of any machine on which the layout fits, with networks",
                 check=lambda one: one.id == id and [(net.networkid, net.asn, net.ips) for net in one.allocation.networks] == [("storage", 0, []), ("internet", 42, ["10.0.0.3"])])
    judge.refused(allocate, [request()], [422], "is not big enough", note="if only a machine with a small disk is left")
    judge.served(f"{api}.free_machine", id, note="with networks", check=lambda one: one.allocation is None)
    judge.served(f"{api}.free_machine", id, note="that is free", check=lambda one: one.allocation is None)
    judge.refused(f"{api}.free_machine", [machine_id(LOCKED)], [422], "locked: repair", note="that is locked")
    judge.refused(f"{api}.free_machine", [machine_id(99)], [404], "no machine with id")


def judge_reinstalls(judge):
    api, request, id = "MachineApi", models.V1MachineReinstallRequest, machine_id(INSTALLED)
    reinstall, image = f"{api}.reinstall_machine", "debian-13.0.20261101"
    for note, number, image_id, statuses, words in [
        ("with an unknown image", INSTALLED, "debian-99.0", [400], "there is no image"),
        ("of a free machine", LARGE, image, [400], "does not contain an allocation"),
        ("of a machine that is not installed", DESCRIBED, image, [400], "is not installed yet"),
        ("of an unknown machine", 99, image, [404], "contains no machine"),
    ]:
        judge.refused(reinstall, [machine_id(number), request(id=machine_id(number), imageid=image_id)], statuses, words, note)
    judge.refused(reinstall, [id, request(id=machine_id(SMALL), imageid=image)], [400], "the path contains", "with another id in its body")
    judge.served(reinstall, id, request(id=id, imageid=image, name="n", description="d"),
                 check=lambda one: (one.id, one.size.id, one.allocation.allocationuuid) == (id, "c1", ALLOCATION))
    judge.served(f"{api}.find_machine", id, note="with an order", check=lambda one: one.allocation.reinstall and one.allocation.image.id == image)


def judge_unserved(judge):
    """Makes every other call of the client, with the id of an installed machine as id, and with an empty body."""
    for api, kind in sorted(inspect.getmembers(metal_python.api, inspect.isclass)):
        for name, function in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("_") or name.endswith("_with_http_info") or name in SERVED.get(api, ()):
                continue
            parameters = list(inspect.signature(function).parameters)[1:-1]
            arguments = [{} if parameter == "body" else machine_id(INSTALLED) for parameter in parameters]
            judge.refused(f"{api}.{name}", arguments, [404, 405])


def judge_token(judge):
    """Repeats one call of each API with another token."""
    judge.client = Driver(f"http://127.0.0.1:{judge.site.port}", "0" * 64, None).client
    calls = [("FilesystemlayoutApi.list_filesystem_layouts", []), ("ImageApi.list_images", []), ("SizeApi.list_sizes", []), ("MachineApi.list_machines", []),
             ("MachineApi.find_machine", [machine_id(1)]), ("MachineApi.allocate_machine", [allocation_request(uuid=machine_id(LARGE))])]
    for call, arguments in calls:
        judge.refused(call, arguments, [401], "token", note="with another token")


def main():
    program, folder = sys.argv[1:]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    site = Site(program, f"{tempfile.mkdtemp(dir=folder)}/site", port)
    try:
        site.start()
        site.boot(SMALL, GIB // 4)
        site.boot(LARGE, 21 * GIB)
        site.install(INSTALLED, 21 * GIB, ALLOCATION)
        judge = Judge(site)
        for part in [judge_layouts, judge_images, judge_sizes, judge_machines, judge_allocations, judge_reinstalls, judge_unserved, judge_token]:
            part(judge)
        judge.check("every served call was made", judge.done == SERVED, judge.done)
    finally:
        site.stop()
    print(f"test result: {'FAILED' if judge.failed else 'ok'}. {judge.passed} passed; {judge.failed} failed; 0 ignored")
    sys.exit(judge.failed > 0)


if __name__ == "__main__":
    main()
