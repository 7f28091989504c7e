/** Report the health of devices, and preview the effect. */

import { useMutation, useQuery, type UseMutationResult, type UseQueryResult } from "@tanstack/react-query";

import type { components } from "../../types/schema";
import { ask, type Refused } from "./http";
import type { Device, Health } from "./wire";

export type DevicePreview = components["schemas"]["DevicePreview"];

export interface Mark {
  devices: readonly string[];
  state: Health;
  reason: string;
}

/** What would happen if devices were so. It is asked for again whenever that is another question. */
export function useDevicePreview(mark: Mark | null): UseQueryResult<DevicePreview, Refused> {
  return useQuery<DevicePreview, Refused>({
    queryKey: ["device-preview", mark],
    queryFn: ({ signal }) => ask<DevicePreview>("/api/devices/preview", { method: "POST", body: mark, signal }),
    enabled: mark !== null,
    placeholderData: (before) => before,
    gcTime: 0,
  });
}

/** Report one device after the other; a repeated report changes nothing. */
export function useMark(): UseMutationResult<Device[], Refused, Mark> {
  return useMutation<Device[], Refused, Mark>({ mutationFn: report });
}

async function report({ devices, state, reason }: Mark): Promise<Device[]> {
  const found: Device[] = [];
  for (const uuid of devices) {
    const path = `/api/devices/${uuid.split("/").map(encodeURIComponent).join("/")}/events`;
    found.push(await ask<Device>(path, { method: "POST", body: { state, reason } }));
  }
  return found;
}
