"""Test of the client that openapi-python-client generates (main.py). The generated package, drophammer_client, is in the search path."""

import importlib
import json

from client_site import INSTALLED, machine_id
from drophammer_client import AuthenticatedClient, Client
from drophammer_client.api.audit import list_audit_entries
from drophammer_client.api.images import create_image
from drophammer_client.api.machines import allocate_machine, create_machine_file, get_machine, get_machine_details, list_machines
from drophammer_client.api.reinstalls import cancel_reinstall, order_reinstall
from drophammer_client.api.server import get_liveness
from drophammer_client.api.users import add_user, create_token
from drophammer_client.models import (
    AllocateMachineBody, AuditEntry, AuditOutcome, CreateImageBody, CreatedMachineFile, ErrorBody, MachineFileRequest, MachineResponse,
    MachineSummary, NewToken, NewUser, ReinstallRequest, UserRole,
)

IMAGE = "debian-13.0.20261101"
# Values of path parameters with which every GET request of an operator is sent.
PARAMETERS = {"/v1/filesystemlayout": "default", "/v1/image": IMAGE, "/v1/size": "c1", "/v1/users": "reader", "/v1/machine": machine_id(INSTALLED),
              "/v1/os": "debootstrap", "/v1/rollouts": 1, "/v1/deploy_templates": "raid", "/v1/deploy-templates": "raid"}
# Requests that are refused in this test, because the object or a setting is missing.
EXPECTED = {"/v1/deploy_templates/{ident}": 404, "/v1/deploy-templates/{ident}": 404, "/v1/os/{name}": 404, "/v1/rollouts/{id}": 404,
            "/v1/machine/{id}/move": 404, "/v1/machine/{id}/boot-digest": 409, "/v1/machine/{id}/power": 409}


def is_error(answer, status, error_code):
    return isinstance(answer, ErrorBody) and (answer.statuscode, answer.error_code) == (status, error_code) and answer.message


def encode(value):
    """Converts a decoded response back to JSON."""
    if isinstance(value, list):
        return [encode(one) for one in value]
    return value.to_dict() if hasattr(value, "to_dict") else value


def test_machines(results, site, client, number):
    machines = list_machines.sync(client=client)
    results.check("Python: machines are listed", all(isinstance(machine, MachineSummary) for machine in machines)
                  and {"one", "two"} <= {machine.name for machine in machines}, machines)
    page = list_machines.sync(client=client, limit=1, q="TWO")
    results.check("Python: a page of the list is selected", [machine.name for machine in page] == ["two"], page)
    one = get_machine.sync(machine_id(INSTALLED), client=client)
    results.check("Python: an operator reads a machine in metal-api's format", isinstance(one, MachineResponse) and one.name == "one", one)
    file = create_machine_file.sync(machine_id(number), client=client, body=MachineFileRequest(name="by-python", size="c1"))
    results.check("Python: a machine file is created", isinstance(file, CreatedMachineFile) and "by-python" in site.text(file.file), file)
    again = create_machine_file.sync(machine_id(number), client=client, body=MachineFileRequest(name="by-python"))
    results.check("Python: a second machine file is refused", isinstance(again, ErrorBody) and again.statuscode == 409, again)


def test_reinstall(results, client):
    id = machine_id(INSTALLED)
    ordered = order_reinstall.sync(id, client=client, check_plan=False, body=ReinstallRequest(id=id, imageid=IMAGE))
    results.check("Python: a reinstall is ordered", ordered.wanted == IMAGE and ordered.order.image == IMAGE, ordered)
    entries = list_audit_entries.sync(client=client, action="reinstall", limit=1)
    results.check("Python: the audit log contains the order", len(entries) == 1 and isinstance(entries[0], AuditEntry)
                  and (entries[0].outcome, entries[0].status, entries[0].object_) == (AuditOutcome.DONE, 200, id), entries)
    canceled = cancel_reinstall.sync(id, client=client)
    results.check("Python: the reinstall is canceled", isinstance(canceled, MachineSummary) and canceled.order is None, canceled)


def test_errors(results, url, client):
    id = machine_id(INSTALLED)
    foreign = list_machines.sync(client=AuthenticatedClient(base_url=url, token="0" * 64))
    results.check("Python: 401 is decoded", is_error(foreign, 401, "DH-101"), foreign)
    add_user.sync(client=client, body=NewUser(name="reader", role=UserRole.VIEWER))
    created = create_token.sync("reader", client=client, body=NewToken(name="test", days=1))
    reader = AuthenticatedClient(base_url=url, token=created.token)
    results.check("Python: a viewer lists machines", len(list_machines.sync(client=reader)) > 1)
    forbidden = order_reinstall.sync(id, client=reader, body=ReinstallRequest(id=id, imageid=IMAGE))
    results.check("Python: 403 is decoded", isinstance(forbidden, ErrorBody) and forbidden.statuscode == 403, forbidden)
    unknown = get_machine_details.sync(machine_id(99), client=client)
    results.check("Python: 404 is decoded", isinstance(unknown, ErrorBody) and unknown.statuscode == 404, unknown)
    refused = allocate_machine.sync(client=client, body=AllocateMachineBody(imageid="debian-99.0"))
    results.check("Python: 422 is decoded", isinstance(refused, ErrorBody) and refused.statuscode == 422, refused)
    existing = create_image.sync(client=client, body=CreateImageBody(id=IMAGE, url="http://127.0.0.1/debian.tar.zst"))
    results.check("Python: 409 is decoded", isinstance(existing, ErrorBody) and existing.statuscode == 409, existing)
    alive = get_liveness.sync(client=Client(base_url=url))
    results.check("Python: a request without a token is answered", isinstance(alive, str), alive)


def test_all_reads(results, document, client):
    """Sends every GET request of an operator. A decoded response must contain all of the response's data."""
    for path, operations in document["paths"].items():
        operation = operations.get("get")
        if operation is None or operation["security"] != [{"operator": []}]:
            continue
        module = importlib.import_module(f"drophammer_client.api.{operation['tags'][0].replace('-', '_')}.{operation['operationId']}")
        arguments = [PARAMETERS[path.split("/{")[0]]] if "{" in path else []
        headers = [parameter for parameter in operation.get("parameters", []) if parameter["in"] == "header"]
        options = {parameter["name"].replace("-", "_"): "latest" for parameter in headers}
        answer = module.sync_detailed(*arguments, client=client, **options)
        is_text = answer.headers["Content-Type"].startswith("text/")
        sent = answer.content.decode() if is_text else json.loads(answer.content)
        is_expected = int(answer.status_code) == EXPECTED.get(path, 200)
        results.check(f"Python: GET {path}", is_expected and encode(answer.parsed) == sent, f"{answer.status_code} {sent} {answer.parsed}")


def test(results, site, document, number):
    url = f"http://127.0.0.1:{site.port}"
    client = AuthenticatedClient(base_url=url, token=site.token)
    test_machines(results, site, client, number)
    test_reinstall(results, client)
    test_errors(results, url, client)
    test_all_reads(results, document, client)
