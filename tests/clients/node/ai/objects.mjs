import { generateObject, streamObject } from "ai";
import { z } from "zod";
import { provider } from "./provider.mjs";

const model = provider(process.env.MODEL);
const schema = z.object({ city: z.enum(["Oslo", "Rome"]), days: z.number().int().min(1).max(9) });
const prompt = "Two days in Rome, please.";

const { object, usage } = await generateObject({ model, schema, prompt });
const stream = streamObject({ model, schema, prompt });
const partial = [];
for await (const piece of stream.partialObjectStream) partial.push(piece);
const { object: choice } = await generateObject({ model, output: "enum", enum: ["yes", "no"], prompt: "Is it so?" });

console.log(JSON.stringify({ object, usage, pieces: partial.length, streamed: await stream.object, choice }));
